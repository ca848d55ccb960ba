"""A checkpoint of another model is one error that names every tensor, and changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties, TensorStorageMetadata

from meshwright.train import assemble
from meshwright.train.assemble import on_meta
from meshwright.train.checkpoint.names import differences, kept_in, kinds_of
from tests.parity.harness import global_batch, laid_out, small
from tests.train.checkpoint import programs
from tests.train.checkpoint.layouts import on_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

BATCHES = [global_batch(small())]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Of one rank."""
    folder = tmp_path_factory.mktemp("checkpoints")
    programs.save_after(0, [(laid_out(small()), str(folder))], BATCHES)
    return str(folder / "step-1")


@pytest.mark.parametrize("layout", [{}, {"dp_shard": 2}, {"tp": 2}, {"dp_shard": 2, "tp": 2}], ids=str)
def test_case_43_what_is_missing_unexpected_or_of_another_shape_is_told_at_once(checkpoint, layout):
    base = small(layers=3, hidden=64, tied=True)
    config = laid_out(base, **layout)
    found = on_ranks(config, programs.load_error, config, checkpoint)
    assert len(set(found)) == 1, "all ranks say the same"
    kind, said, unchanged = found[0]
    assert kind == "ConfigError"
    assert unchanged
    assert said.startswith(f"{checkpoint}: not a checkpoint of this model: 36 missing, 4 unexpected, 18 of another")
    assert "weights.blocks.2.attention.wq.weight: missing" in said
    assert said.count("problems") == 0


def kind(*shape, dtype=torch.float32):
    return shape, dtype


def said(wanted, kept):
    return [line.strip() for problem in differences(wanted, kept, "c") for line in problem.what.splitlines()[1:]]


def test_every_kind_of_difference_has_its_line():
    kept = {"weights.old": kind(2), "weights.same": kind(3), "weights.wide": kind(4, 2), "weights.half": kind(2)}
    wanted = {
        "weights.new": kind(2),
        "weights.same": kind(3),
        "weights.wide": kind(2, 4),
        "weights.half": kind(2, dtype=torch.bfloat16),
    }
    assert said([wanted], kept) == [
        "weights.new: missing",
        "weights.old: unexpected",
        "weights.wide: float32[4, 2], not float32[2, 4]",
        "weights.half: float32[2], not bfloat16[2]",
    ]


def test_each_rank_may_want_a_part_of_the_names():
    """A pipeline stage has the names of its own blocks."""
    kept = {"weights.first": kind(2), "weights.last": kind(2)}
    assert said([{"weights.first": kind(2)}, {"weights.last": kind(2)}], kept) == []
    assert said([{"weights.first": kind(2)}, {"weights.first": kind(2)}], kept) == ["weights.last: unexpected"]


def test_of_very_many_the_first_are_shown_and_all_are_counted():
    wanted = {f"weights.{i}": kind(1) for i in range(100)}
    (problem,) = differences([wanted], {}, "c")
    assert problem.what.startswith("not a checkpoint of this model: 100 missing, 0 unexpected")
    assert problem.what.endswith("and 80 more")


def test_the_random_state_of_ranks_is_no_part_of_the_model():
    entry = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([2]), [])
    metadata = Metadata({"weights.a": entry, "random.3.cpu": entry})
    assert kept_in(metadata) == kinds_of({"weights.a": torch.zeros(2)})


def test_a_frozen_parameter_has_no_optimizer_state_until_it_is_thawed(tmp_path, monkeypatch):
    config = laid_out(small())
    with monkeypatch.context() as patch:
        patch.setattr(assemble, "on_meta", without_norm)
        programs.save_after(0, [(config, str(tmp_path))], BATCHES)
        assert programs.load_error(0, config, str(tmp_path / "step-1"))[:2] == ("", "")
    _, said, unchanged = programs.load_error(0, config, str(tmp_path / "step-1"))
    assert unchanged
    assert [line.strip() for line in said.splitlines() if "norm.weight" in line] == [
        f"optimizer.norm.weight.{key}: missing" for key in ("step", "exp_avg", "exp_avg_sq")
    ]


def without_norm(config):
    """The model with its last norm frozen, and the loss."""
    model, loss = on_meta(config)
    model.norm.weight.requires_grad_(False)
    return model, loss

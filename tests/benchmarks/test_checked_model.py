"""The model that `benchmarks.checker` times is judged, and judged or not it is the same model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import checked_model
from meshwright import recipes
from meshwright.check import layout_of
from meshwright.errors import SpmdTypeError
from meshwright.train.assemble import on_meta, run_dims
from meshwright.types.kinds import I, P


class Ops(TorchDispatchMode):
    """Counts the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **kwargs or {})


def test_the_loss_has_the_type_of_a_step() -> None:
    assert layout_of(checked_model.programs()["checked"]()) == {"dp": P, "tp": I}


def test_a_wrong_declaration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(config: Any) -> Any:
        model, loss = on_meta(config)
        declared = model.blocks[0].attention.wo.config.sharding_config
        object.__setattr__(declared, "out_src_shardings", declared.out_dst_shardings)
        return model, loss

    monkeypatch.setattr(checked_model, "on_meta", wrong)
    programs = checked_model.programs()
    with pytest.raises(SpmdTypeError, match="wo"):
        programs["checked"]()


def test_both_run_the_ops_of_the_model() -> None:
    counts = []
    for program in checked_model.programs().values():
        with Ops() as ops:
            program()
        counts.append(ops.counts)
    unchecked, checked = counts
    assert unchecked["aten.mm.default"] == checked["aten.mm.default"] > 100


def test_it_is_the_recipe_on_four_ranks() -> None:
    assert run_dims(recipes.find("llama3_debug")).world == 4
    assert torch.is_tensor(checked_model.programs()["unchecked"]())

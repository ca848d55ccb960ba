"""Plain and distributed tensors do not mix: the error is at the boundary, and names argument and field."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor import DTensor

from benchmarks.eager_step import fake_world
from meshwright.errors import SpmdTypeError
from meshwright.models.layouts import activation
from meshwright.parity.step import on_process, own_batches
from meshwright.train.loss import LOSS
from meshwright.train.passes import INPUT
from meshwright.types.kinds import S
from tests.parity.harness import global_batch, laid_out, small

DTENSORS = ("full_dtensor", "partial_dtensor")


@pytest.fixture(params=DTENSORS)
def run(request):
    """One rank of dp 2 x tp 4, and the micro-batch that it has."""
    config = laid_out(small(), backend=request.param, dp_shard=2, tp=4)
    with fake_world():
        assembled = on_process(0, config)
        (batch,) = own_batches(assembled, config, [global_batch(config)])
        with assembled.backend.scope():
            yield assembled, batch


def refused(call) -> str:
    with pytest.raises(SpmdTypeError) as caught:
        call()
    (problem,) = caught.value.problems
    assert "a plain tensor" in problem.what
    assert "Backend.enter" in problem.fix
    return problem.where


def test_logits_distributed_and_labels_plain(run):
    assembled, batch = run
    tokens, positions, documents = (
        assembled.backend.enter(part, INPUT) for part in (batch.tokens, batch.positions, batch.documents)
    )
    logits = assembled.model(tokens, positions, documents)
    assert isinstance(logits, DTensor)
    where = refused(lambda: assembled.loss(logits, batch.labels))
    assert where == "CrossEntropy: argument 'labels', declared by sharding_config.in_src_shardings['labels']"
    loss = assembled.loss(logits, assembled.backend.enter(batch.labels, INPUT))
    assert assembled.backend.leave(loss, LOSS).isfinite()


def test_labels_distributed_and_logits_plain(run):
    assembled, batch = run
    logits = torch.zeros(*batch.tokens.shape, 16)
    labels = assembled.backend.enter(batch.labels, INPUT)
    assert "'logits'" in refused(lambda: assembled.loss(logits, labels))
    loss = assembled.loss(assembled.backend.enter(logits, activation(S(2))), labels)
    assert assembled.backend.leave(loss, LOSS).isfinite()


@pytest.mark.parametrize("plain", ["tokens", "positions", "documents"])
def test_whichever_input_of_the_model_is_plain(run, plain):
    assembled, batch = run
    parts = {name: getattr(batch, name) for name in ("tokens", "positions", "documents")}
    given = {name: part if name == plain else assembled.backend.enter(part, INPUT) for name, part in parts.items()}
    assert f"in_src_shardings['{plain}']" in refused(lambda: assembled.model(*given.values()))


def test_plain_alone_is_what_spmd_types_takes():
    config = laid_out(small(), dp_shard=2, tp=4)
    with fake_world():
        assembled = on_process(0, config)
        (batch,) = own_batches(assembled, config, [global_batch(config)])
        with assembled.backend.scope():
            logits = assembled.model(batch.tokens, batch.positions, batch.documents)
            assert assembled.loss(logits, batch.labels).isfinite()

"""A step: micro-batches are one sum, and what is not finite anywhere stops every rank before the update."""

from __future__ import annotations

import pytest
import torch

from meshwright.comm.grid import DENSE, WORLD
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.errors import RunError
from meshwright.train.assemble import assemble, local_backend, run_dims
from meshwright.train.step import train_step
from meshwright.train.trainer import split_rows
from tests.parity.harness import alone_on_cpu, global_batch, laid_out, rows, small

LAYOUTS = [{"dp_shard": 2}, {"tp": 2}, {"dp_shard": 2, "tp": 2, "sequence_parallel": False}]


def on_ranks(config, work):
    dims = run_dims(config)

    def body(rank: int):
        view = current_mesh()
        run = assemble(config, local_backend(dims, rank, view), view["world"], torch.device("cpu"))
        return work(run, rank, view["dp"])

    return run_ranks(dims, body, {**DENSE, **WORLD})


@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_are_one_sum(parts):
    batch = global_batch(small())
    whole, cut = alone_on_cpu(small()), alone_on_cpu(small())
    one = train_step(whole, [batch], step=1, rate=1e-3, max_norm=0.5)
    many = train_step(cut, split_rows(batch, parts), step=1, rate=1e-3, max_norm=0.5)
    assert many.loss == pytest.approx(one.loss, rel=1e-6)
    assert many.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
    for mine, true in zip(cut.model.parameters(), whole.model.parameters(), strict=True):
        assert (mine.grad - true.grad).norm() <= 1e-5 * true.grad.norm()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_weight_that_is_not_finite_on_one_rank_stops_all_before_the_update(layout, value):
    config = laid_out(small(), **layout)
    batch = global_batch(config)

    def step(run, rank, dp) -> tuple[str, bool]:
        if rank == 1:
            with torch.no_grad():
                run.model.blocks[1].feed_forward.w2.weight[0, 0] = value
        before = [param.detach().clone() for param in run.model.parameters()]
        with pytest.raises(RunError) as stopped:
            train_step(run, [rows(batch, dp.index, dp.size)], step=7, rate=1e-3, max_norm=1.0)
        after = list(run.model.parameters())
        same = all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, after, strict=True))
        return str(stopped.value), same

    told, untouched = zip(*on_ranks(config, step), strict=True)
    assert len(set(told)) == 1
    assert told[0].startswith("step 7: ")
    assert "nothing was updated" in told[0]
    assert all(untouched)


def test_clipping_scales_the_update_and_not_the_shown_norm():
    batch = global_batch(small())
    free, clipped = alone_on_cpu(small()), alone_on_cpu(small())
    norm = train_step(free, [batch], step=1, rate=1e-3, max_norm=1e9).grad_norm
    assert train_step(clipped, [batch], step=1, rate=1e-3, max_norm=norm / 4).grad_norm == norm
    for mine, true in zip(clipped.model.parameters(), free.model.parameters(), strict=True):
        assert torch.allclose(mine.grad * 4, true.grad, rtol=1e-5)


def test_a_step_learns():
    batch = global_batch(small())
    run = alone_on_cpu(small())
    losses = [train_step(run, [batch], step=i, rate=1e-2, max_norm=1.0).loss for i in range(1, 6)]
    assert losses[-1] < losses[0] - 0.3

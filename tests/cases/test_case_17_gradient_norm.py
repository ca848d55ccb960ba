"""The norm counts every element once: tp 2, sharded gradients [3, 0] | [0, 4], a replicated one [12]: 13."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from meshwright.backends.parallelize import materialise, parallelize
from meshwright.comm.grid import DENSE, WORLD, ParallelismDims
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.core.init import Constant
from meshwright.core.module import Module
from meshwright.core.sharding import ShardingConfig
from meshwright.train.assemble import local_backend
from meshwright.train.gradients import Gradients, clip
from meshwright.types.kinds import I, R, S


class Pair(Module):
    """A weight that is sharded over tp and one that every tp rank holds."""

    initial = {"sharded": Constant(1.0), "whole": Constant(1.0)}  # noqa: RUF012

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        sharded: int
        whole: int

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.sharded = nn.Parameter(torch.empty(config.sharded))
        self.whole = nn.Parameter(torch.empty(config.whole))


def norms(dims: ParallelismDims, sharded: list[list[float]], whole: list[float]) -> list[float]:
    """On every rank, of gradients given by tp rank; data ranks hold the same ones, summed already."""
    length = sum(map(len, sharded))
    state = {"dp": I, "cp": I}
    layouts = {"sharded": {**state, "tp": S(0)}, "whole": {**state, "tp": I}}
    config = Pair.Config(sharded=length, whole=len(whole), sharding_config=ShardingConfig(state_shardings=layouts))

    def body(rank: int) -> float:
        view = current_mesh()
        backend = local_backend(dims, rank, view)
        with torch.device("meta"):
            model = config.build()
        states = parallelize(model, backend)
        materialise(model, backend, states, torch.device("cpu"), 0)
        model.sharded.grad = torch.tensor(sharded[view["tp"].index])
        model.whole.grad = torch.tensor(whole)
        gradients = Gradients(model, backend, states, view["world"])
        grads = gradients.finish()
        norm = gradients.total_norm(grads)
        clip(grads, norm, 1.0)
        assert gradients.total_norm(grads).item() == pytest.approx(1.0)
        return norm.item()

    return run_ranks(dims, body, {**DENSE, **WORLD})


def test_sharded_parts_are_summed_and_a_replica_counts_once():
    assert norms(ParallelismDims(tp=2), [[3.0, 0.0], [0.0, 4.0]], [12.0]) == [13.0, 13.0]


@pytest.mark.parametrize(
    "dims", [ParallelismDims(tp=2, dp_shard=2), ParallelismDims(tp=2, dp_replicate=3), ParallelismDims(tp=2, cp=2)]
)
def test_more_replicas_change_nothing(dims):
    found = norms(dims, [[3.0, 0.0], [0.0, 4.0]], [12.0])
    assert found == [pytest.approx(13.0)] * dims.world


@pytest.mark.parametrize(
    ("sharded", "whole"),
    [([[8.0], [0.0], [6.0]], [24.0]), ([[2.0, 3.0], [6.0, 0.0], [0.0, 0.0], [0.0, 24.0]], [0.0, 60.0])],
)
def test_other_degrees_and_lengths(sharded, whole):
    true = math.hypot(*(value for part in sharded for value in part), *whole)
    assert norms(ParallelismDims(tp=len(sharded)), sharded, whole) == [pytest.approx(true)] * len(sharded)


class Tied(Module):
    """One parameter under two names."""

    initial = {"one": Constant(1.0), "other": Constant(1.0)}  # noqa: RUF012

    def __init__(self, config: object = None) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.empty(2))
        self.other = self.one


@pytest.mark.parametrize("tp", [1, 2])
def test_a_tied_weight_counts_once(tp):
    state = {"dp": R, "cp": R, "tp": I}
    config = Tied.Config(sharding_config=ShardingConfig(state_shardings={"one": state, "other": state}))

    def body(rank: int) -> tuple[float, Tensor]:
        view = current_mesh()
        backend = local_backend(ParallelismDims(tp=tp), rank, view)
        with torch.device("meta"):
            model = config.build()
        states = parallelize(model, backend)
        materialise(model, backend, states, torch.device("cpu"), 0)
        assert model.one is model.other
        (model.one * torch.tensor([3.0, 0.0]) + model.other * torch.tensor([0.0, 4.0])).sum().backward()
        gradients = Gradients(model, backend, states, view["world"])
        return gradients.total_norm(gradients.finish()).item()

    assert run_ranks(ParallelismDims(tp=tp), body, {**DENSE, **WORLD}) == [5.0] * tp


def test_a_parameter_that_a_rank_did_not_use_adds_zero_and_joins():
    """Rank 1 has no gradient for the replicated weight: its part of the sum is zero, and nobody waits for it."""
    state = {"dp": R, "cp": R, "tp": R}
    config = Pair.Config(
        sharded=2,
        whole=2,
        sharding_config=ShardingConfig(state_shardings={"sharded": {**state, "tp": S(0)}, "whole": state}),
    )

    def body(rank: int) -> float:
        view = current_mesh()
        backend = local_backend(ParallelismDims(tp=2), rank, view)
        with torch.device("meta"):
            model = config.build()
        states = parallelize(model, backend)
        materialise(model, backend, states, torch.device("cpu"), 0)
        if rank == 0:
            model.whole.grad = torch.tensor([3.0, 4.0])
        gradients = Gradients(model, backend, states, view["world"])
        grads = gradients.finish()
        assert torch.equal(model.whole.grad, torch.tensor([3.0, 4.0]))
        return gradients.total_norm(grads).item()

    assert run_ranks(ParallelismDims(tp=2), body, {**DENSE, **WORLD}) == [5.0, 5.0]

"""The norm counts every element once: tp 2, sharded gradients [3, 0] | [0, 4], a replicated one [12]: 13."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

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
from tests.cases.backends import alone_frozen, everywhere, on_processes_frozen
from tests.marks import slow
from tests.parity.harness import global_batch, one_device, small
from tests.parity.processes import on_processes


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
        assert gradients.total_norm(grads).item() == pytest.approx(min(norm.item(), 1.0), rel=1e-5)
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


@settings(max_examples=20)
@given(data=st.data(), tp=st.integers(1, 4), length=st.integers(1, 3), copies=st.sampled_from(["dp_shard", "cp"]))
def test_it_is_the_norm_of_all_elements_whatever_the_degrees_and_gradients(data, tp, length, copies):
    values = st.integers(-50, 50).map(float)
    sharded = data.draw(st.lists(st.lists(values, min_size=length, max_size=length), min_size=tp, max_size=tp))
    whole = data.draw(st.lists(values, min_size=1, max_size=4))
    true = math.hypot(*(value for part in sharded for value in part), *whole)
    dims = ParallelismDims(**{"tp": tp, copies: data.draw(st.integers(1, 2))})
    assert norms(dims, sharded, whole) == [pytest.approx(true)] * dims.world


class Tied(Module):
    """One parameter under two names."""

    initial = {"one": Constant(1.0), "other": Constant(1.0)}  # noqa: RUF012

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        length: int

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.empty(config.length))
        self.other = self.one


@settings(max_examples=15)
@given(
    tp=st.integers(1, 3),
    pairs=st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=4).filter(any),
)
def test_a_tied_weight_counts_once(tp, pairs):
    """pairs: what each use of the weight adds to each element of its gradient."""
    one, other = (torch.tensor(each, dtype=torch.float32) for each in zip(*pairs, strict=True))
    state = {"dp": R, "cp": R, "tp": I}
    sharding = ShardingConfig(state_shardings={"one": state, "other": state})
    config = Tied.Config(length=len(pairs), sharding_config=sharding)

    def body(rank: int) -> float:
        view = current_mesh()
        backend = local_backend(ParallelismDims(tp=tp), rank, view)
        with torch.device("meta"):
            model = config.build()
        states = parallelize(model, backend)
        materialise(model, backend, states, torch.device("cpu"), 0)
        assert model.one is model.other
        (model.one * one + model.other * other).sum().backward()
        gradients = Gradients(model, backend, states, view["world"])
        return gradients.total_norm(gradients.finish()).item()

    true = math.hypot(*(sum(pair) for pair in pairs))
    assert run_ranks(ParallelismDims(tp=tp), body, {**DENSE, **WORLD}) == [pytest.approx(true)] * tp


@settings(max_examples=15)
@given(
    tp=st.integers(2, 4),
    used=st.integers(0, 3),
    grads=st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=3),
)
def test_a_parameter_that_a_rank_did_not_use_adds_zero_and_joins(tp, used, grads):
    """One rank has a gradient for the replicated weight: the parts of the others are zero, and nobody waits."""
    user, length = used % tp, len(grads)
    state = {"dp": R, "cp": R, "tp": R}
    config = Pair.Config(
        sharded=tp,
        whole=length,
        sharding_config=ShardingConfig(state_shardings={"sharded": {**state, "tp": S(0)}, "whole": state}),
    )

    def body(rank: int) -> float:
        view = current_mesh()
        backend = local_backend(ParallelismDims(tp=tp), rank, view)
        with torch.device("meta"):
            model = config.build()
        states = parallelize(model, backend)
        materialise(model, backend, states, torch.device("cpu"), 0)
        if rank == user:
            model.whole.grad = torch.tensor(grads)
        gradients = Gradients(model, backend, states, view["world"])
        finished = gradients.finish()
        assert torch.equal(model.whole.grad, torch.tensor(grads))
        return gradients.total_norm(finished).item()

    found = run_ranks(ParallelismDims(tp=tp), body, {**DENSE, **WORLD})
    assert found == [pytest.approx(math.hypot(*grads))] * tp


@pytest.mark.parametrize("tied", [slow(False), True])
def test_through_a_pipeline_it_is_that_of_one_device_on_every_backend(tied):
    """A tied weight is on two stages and counts once."""
    config, batches = small(tied=tied), [global_batch(small(), 1)]
    true = pytest.approx(one_device(config, batches).grad_norm, rel=1e-5)
    assert [found.grad_norm for found in on_processes(everywhere(config, [{"pp": 2}]), batches, 2)] == [true] * 3
    inside = [{"pp": 2, "tp": 2}, {"pp": 2, "dp_shard": 2}, {"pp": 4}]
    assert [found.grad_norm for found in on_processes(everywhere(config, inside), batches, 4)] == [true] * 9


@pytest.mark.parametrize("trained", ["embedding", "head", "blocks.0.attention.wq"])
def test_a_stage_that_trains_nothing_adds_zero_and_joins(trained):
    """One parameter learns: on the first stage, on the last, in between; with pp 4 three stages have none."""
    config, batches = small(), [global_batch(small(), 2)]
    others = rf"(?!{trained})"
    true = pytest.approx(alone_frozen(config, batches, others).grad_norm, rel=1e-5)
    assert [found.grad_norm for found in on_processes_frozen(everywhere(config, [{"pp": 4}]), batches, 4, others)] == [
        true
    ] * 3

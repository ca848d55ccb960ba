"""Length 5 on tp 2 is refused at build time with the next legal lengths; unused parameters still join every sum."""

from __future__ import annotations

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
from meshwright.errors import ConfigError, either
from meshwright.train.assemble import local_backend
from meshwright.train.gradients import Gradients
from meshwright.train.preflight import preflight
from meshwright.types.kinds import R
from tests.models.specs import small_deepseek_v3, small_qwen3_moe
from tests.parity.experts import small_experts
from tests.parity.harness import assert_same, global_batch, laid_out, on_threads, one_device, small
from tests.parity.processes import on_processes


@pytest.mark.parametrize(
    ("length", "tp", "legal"),
    [(5, 2, [4, 6, 8]), (13, 4, [12, 16, 20]), (3, 8, [8, 16]), (1001, 2, [1000, 1002, 1004])],
)
def test_a_length_that_tp_cannot_split(length, tp, legal):
    config = laid_out(small(), tp=tp)
    config.training.length = length
    with pytest.raises(ConfigError) as refused:
        preflight(config, tp)
    message = str(refused.value)
    assert f"training.length: {length} tokens do not divide over tp {tp}" in message
    assert f"fix: --training.length {either(legal)}, or --parallel.no-sequence-parallel" in message
    for fixed in legal:
        config.training.length = fixed
        preflight(config, tp)
    config.training.length = length
    config.parallel.sequence_parallel = False
    preflight(config, tp)


class Experts(Module):
    """x -> the sum of the experts that are called; each is one weight that all tp ranks hold."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        count: int

    def __init__(self, config: Config) -> None:
        super().__init__()
        for i in range(config.count):
            self.register_parameter(f"expert{i}", nn.Parameter(torch.empty(2)))

    def initializers(self):
        return {f"expert{i}": Constant(1.0) for i in range(self.config.count)}

    def forward(self, x: Tensor, called: list[int]) -> Tensor:
        return sum(getattr(self, f"expert{i}") @ x for i in called)


@pytest.mark.parametrize("called", [[[0, 1], [1]], [[0], [1]], [[0, 1, 2], [2], [1, 2], [0]], [[0], [0]]], ids=str)
def test_an_expert_without_tokens_on_some_ranks_joins_with_zeros(called):
    tp, count = len(called), 3
    state = {"dp": R, "cp": R, "tp": R}
    sharding = ShardingConfig(state_shardings={f"expert{i}": state for i in range(count)})
    config = Experts.Config(count=count, sharding_config=sharding)
    dims = ParallelismDims(tp=tp)

    def body(rank: int) -> list[float]:
        view = current_mesh()
        backend = local_backend(dims, rank, view)
        with torch.device("meta"):
            model = config.build()
        states = parallelize(model, backend)
        materialise(model, backend, states, torch.device("cpu"), 0)
        model(torch.full((2,), rank + 1.0), called[rank]).backward()
        Gradients(model, backend, states, view["world"]).finish()
        return [getattr(model, f"expert{i}").grad[0].item() for i in range(count)]

    true = [float(sum(rank + 1 for rank in range(tp) if i in called[rank])) for i in range(count)]
    assert run_ranks(dims, body, {**DENSE, **WORLD}) == [true] * tp


SPREADS = [
    {"dp_shard": 2, "ep": 2},
    {"tp": 2, "ep": 2},
    {"tp": 2},
    {"cp": 2, "tp": 2, "ep": 4},
    {"dp_shard": 4, "ep": 2},
]


def assert_idle(outcome):
    """Expert 1 saw no token: its gradients are there, and are zeros."""
    names = [name for name in outcome.grads if ".experts.w" in name]
    assert len(names) >= 3
    for name in names:
        assert outcome.grads[name][1].abs().max() == 0.0
        assert outcome.grads[name].abs().max() > 0.0
    assert all(tokens[1] == 0 for tokens in outcome.loads.values())


@pytest.mark.parametrize("layout", SPREADS, ids=str)
@pytest.mark.parametrize("family", ["qwen3", "deepseek"])
def test_an_expert_of_a_model_without_tokens_joins_with_zeros(family, layout):
    config = small_experts(family, "idle")
    batches = [global_batch(config, 3)]
    mine, true = on_threads(laid_out(config, **layout), batches), one_device(config, batches)
    assert_idle(mine)
    assert_same(mine, true)


def test_so_it_does_on_processes_where_experts_are_stored_in_parts():
    """All ranks gather and sum, also the two of which no expert saw a token."""
    config = small_experts("qwen3", "idle")
    batches = [global_batch(config, 3)]
    true = one_device(config, batches)
    for outcome in on_processes([laid_out(config, dp_shard=4, ep=2), laid_out(config, dp_shard=4)], batches, 4):
        assert_idle(outcome)
        assert_same(outcome, true)


@pytest.mark.parametrize("model", [small_qwen3_moe, small_deepseek_v3])
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize(
    ("length", "layout", "over", "legal"),
    [
        (5, {"tp": 2, "ep": 2}, "tp 2", [4, 6, 8]),
        (13, {"tp": 4, "ep": 4}, "tp 4", [12, 16, 20]),
        (18, {"cp": 2, "tp": 2, "ep": 4}, "cp 2 x tp 2", [16, 20, 24]),
    ],
)
def test_a_length_that_ranks_with_experts_cannot_split(model, split, length, layout, over, legal):
    """Where ep spreads experts, ranks send parts of the sequence, whether or not they lie in parts between blocks."""
    config = laid_out(model(), **layout, sequence_parallel=split)
    config.training.length = length
    world = config.parallel.cp * config.parallel.tp
    with pytest.raises(ConfigError) as refused:
        preflight(config, world)
    (problem,) = refused.value.problems
    assert problem.where == "training.length"
    assert problem.what == f"{length} tokens do not divide over {over}"
    assert problem.why == "with ep every tp rank sends an equal part of the sequence to experts"
    assert problem.fix == f"--training.length {', '.join(map(str, legal[:-1]))} or {legal[-1]}, or --parallel.ep 1"
    for fixed in legal:
        config.training.length = fixed
        preflight(config, world)

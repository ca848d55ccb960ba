"""A replicated bias that is added before a partial sum is counted once a rank.

x [1, 1], row-parallel weight of ones, bias 10, tp 2: 12, not 22.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.backends.parallelize import materialise, parallelize
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.models.layers import Linear
from meshwright.models.layouts import Plan, rowwise
from meshwright.spmd import I, P, R, S
from meshwright.train.assemble import local_backend
from tests.checked import accepted, refused

NUMBERS = [(2, 2, 10.0, 12.0), (2, 4, 0.5, 4.5), (3, 6, -7.0, -1.0), (4, 4, 10.0, 14.0)]  # tp, features, bias, value


def linear(tp: int, features: int, bias: float, kind: spmd.SpmdType, how: str) -> torch.Tensor:
    """x W^T + b, the bias of type `kind` added as `how` says."""
    part = features // tp
    x = spmd.assert_type(torch.ones(1, part), {"tp": S(1)})
    weight = spmd.assert_type(torch.ones(1, part), {"tp": S(1)})
    b = spmd.assert_type(torch.full((1,), bias), {"tp": kind})
    if how == "added after":
        return spmd.all_reduce(F.linear(x, weight), "tp", src=P, dst=kind) + b
    if how == "converted":
        b = spmd.convert(b, "tp", src=kind, dst=P)
    y = F.linear(x, weight, b) if how != "plus" else F.linear(x, weight) + b
    return spmd.all_reduce(y, "tp", src=P, dst=R)


@pytest.mark.parametrize(("tp", "features", "bias", "value"), NUMBERS)
@pytest.mark.parametrize("how", ["in linear", "plus"])
@pytest.mark.parametrize("kind", [R, I])
def test_it_is_refused(tp, features, bias, value, how, kind):
    message = refused(ParallelismDims(tp=tp), lambda rank: linear(tp, features, bias, kind, how))
    assert "on axis 'tp'" in message
    assert f"is {kind!r}" in message
    assert "count" in message
    assert "P -> " in message


@pytest.mark.parametrize(("tp", "features", "bias", "value"), NUMBERS)
@pytest.mark.parametrize(("kind", "how"), [(R, "converted"), (R, "added after"), (I, "added after")])
def test_what_the_message_offers_gives_the_right_value(tp, features, bias, value, kind, how):
    results = accepted(ParallelismDims(tp=tp), lambda rank: linear(tp, features, bias, kind, how).item())
    assert results == [value] * tp


@pytest.mark.parametrize(("tp", "features", "bias", "value"), NUMBERS)
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_the_row_parallel_layer_adds_its_bias_once(tp, features, bias, value, sequence_parallel):
    """Value, and the gradient of the bias: the number of positions, on every rank."""
    dims = ParallelismDims(tp=tp)
    plan = Plan(sequence_parallel=sequence_parallel)
    config = Linear.Config(in_features=features, out_features=1, bias=True, sharding_config=rowwise(plan, bias=True))

    def program(rank: int) -> tuple[list[float], float]:
        backend = local_backend(dims, rank, current_mesh())
        with torch.device("meta"):
            layer = config.build()
        states = parallelize(layer, backend)
        materialise(layer, backend, states, torch.device("cpu"), 0)
        with torch.no_grad():
            layer.weight.fill_(1.0)
            layer.bias.fill_(bias)
        y = layer(torch.ones(1, tp, features // tp))
        y.sum().backward()
        grad = layer.bias.grad
        owed = "tp" if states["bias"].layout["tp"] is R else None
        total = current_mesh()["tp"].all_reduce(grad) if owed else grad
        return y.flatten().tolist(), total.item()

    for values, grad in run_ranks(dims, program):
        assert set(values) == {value}
        assert grad == tp

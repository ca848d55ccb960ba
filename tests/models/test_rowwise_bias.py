"""A row-parallel layer adds its bias once, whatever the layout of the stream: one rank alone adds it to its part."""

from __future__ import annotations

import pytest
import torch

from meshwright.backends.parallelize import materialise, parallelize
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.models.layers import Linear
from meshwright.models.layouts import Plan, rowwise
from meshwright.train.assemble import local_backend
from meshwright.types.kinds import R

NUMBERS = [(2, 2, 10.0, 12.0), (2, 4, 0.5, 4.5), (3, 6, -7.0, -1.0), (4, 4, 10.0, 14.0)]  # tp, features, bias, value


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

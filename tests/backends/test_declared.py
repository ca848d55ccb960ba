"""The backend `Declared` says every declared type out loud, and computes what `Erased` computes."""

from __future__ import annotations

import pytest
import torch

from meshwright.backends.declared import Declared, apart, of_experts
from meshwright.backends.parallelize import parallelize
from meshwright.backends.storage import Replicated
from meshwright.check import layout_of, typecheck
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.shapes import shape_view
from meshwright.core.sharding import ShardingConfig
from meshwright.errors import SpmdTypeError
from meshwright.models.layers import Linear
from meshwright.types.kinds import P, R, S
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition

COPIES = ParallelismDims(dp_shard=2, tp=4, tp_copy=2)


def declared(dims: ParallelismDims) -> Declared:
    stated, sparse = (shape_view(dims, 0, axes) for axes in (apart(dims), of_experts(dims)))
    return Declared(dims, shape_view(dims, 0, dims.compute), Replicated(dims, 0), stated, sparse)


@pytest.mark.parametrize(
    ("dims", "axes"),
    [
        (ParallelismDims(), []),
        (ParallelismDims(dp_shard=2, cp=2, tp=2), ["dp", "cp", "tp"]),
        (ParallelismDims(tp=2, tp_copy=2), ["tp"]),
        (COPIES, ["dp", "tp_kv", "tp_copy"]),
    ],
    ids=str,
)
def test_no_axis_is_a_part_of_another(dims, axes):
    assert list(apart(dims)) == axes


@pytest.mark.parametrize(
    ("dims", "layout", "stated"),
    [
        (COPIES, {"dp": S(0), "tp": S(1)}, {"dp": S(0), "tp_kv": S(1), "tp_copy": S(1)}),
        (COPIES, {"dp": R, "tp_kv": S(0), "tp_copy": R}, {"dp": R, "tp_kv": S(0), "tp_copy": R}),
        (ParallelismDims(tp=2), {"tp_kv": S(0)}, {"tp": S(0)}),
        (ParallelismDims(tp=2, tp_copy=2), {"tp_copy": R}, {"tp": R}),
        (ParallelismDims(cp=2, tp=2), {"cp": S(1), "tp": S(1)}, {"cp": S(1), "tp": S(1)}),
    ],
    ids=str,
)
def test_layouts_are_stated_on_those_axes(dims, layout, stated):
    assert declared(dims).on(layout) is SpmdLayout(stated)


def linear(weight: SpmdLayout) -> Linear:
    config = Linear.Config(
        in_features=4,
        out_features=8,
        sharding_config=ShardingConfig(
            state_shardings={"weight": weight},
            in_src_shardings={"x": {"tp": S(1)}},
            out_src_shardings={"tp": P},
            out_dst_shardings={"tp": S(0)},
        ),
    )
    with torch.device("meta"):
        module = config.build()
    return module


def output(weight: SpmdLayout) -> torch.Tensor:
    dims = ParallelismDims(tp=2)
    backend = declared(dims)
    module = linear(weight)
    states = parallelize(module, backend)
    with backend.scope(), typecheck():
        backend.states(module.weight, states["weight"].layout)
        return module(torch.empty(6, 2, device="meta"))


def test_an_output_has_its_declared_type():
    y = output(SpmdLayout({"tp": S(1)}))
    assert layout_of(y) == {"tp": S(0)}
    assert y.shape == (3, 8)


def test_a_type_that_is_not_what_is_declared_is_refused():
    with pytest.raises(SpmdTypeError):
        output(SpmdLayout({"tp": R}))


def test_a_crossing_that_changes_nothing_states_the_type_too():
    backend = declared(ParallelismDims(tp=2))
    crossing = backend.cross(Transition({"tp": R}, {"tp": R}))
    with backend.scope(), typecheck():
        x = crossing(torch.empty(3, device="meta"))
        assert layout_of(x) == {"tp": R}
        with pytest.raises(SpmdTypeError):
            backend.cross(Transition({"tp": S(0)}, {"tp": R}))(x)


def test_without_a_checker_it_is_a_plain_step():
    crossing = declared(ParallelismDims(tp=2)).cross(Transition({"tp": S(0)}, {"tp": R}))
    assert crossing(torch.empty(3, device="meta")).shape == (6,)

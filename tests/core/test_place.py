"""What a module is told of its place is what its contract says of this rank."""

from __future__ import annotations

import pytest
import torch

from meshwright.comm.grid import ParallelismDims
from meshwright.core.place import Place
from meshwright.types.kinds import R, S
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition
from tests.core.toys import Holds, holding
from tests.ranks import on_ranks

REST = {"dp": R, "cp": R}


class Told(Holds):
    """Keeps its place."""

    def localize(self, place: Place) -> None:
        self.place = place


def told(**sharding):
    config = holding({"weight": (8, 3)}, **sharding)
    return Told.Config(params=config.params, buffers={}, sharding_config=config.sharding_config)


@pytest.mark.parametrize(
    ("layout", "dims", "spans"),
    [
        ({**REST, "tp": S(0)}, ParallelismDims(tp=2), [range(0, 4), range(4, 8)]),
        ({"dp": S(0), "cp": R, "tp": S(0)}, ParallelismDims(dp_shard=2, tp=2), [range(i, i + 2) for i in (0, 2, 4, 6)]),
        ({"tp": S(0), "dp": S(0), "cp": R}, ParallelismDims(dp_shard=2, tp=2), [range(i, i + 2) for i in (0, 4, 2, 6)]),
        (
            {**REST, "tp_kv": S(0), "tp_copy": R},
            ParallelismDims(tp=4, tp_copy=2),
            [range(0, 4)] * 2 + [range(4, 8)] * 2,
        ),
        ({**REST, "tp": R}, ParallelismDims(tp=2), [range(8)] * 2),
        ({**REST, "tp": S(0)}, ParallelismDims(), [range(8)]),
    ],
)
def test_a_span_is_what_this_rank_computes_with(layout, dims, spans):
    config = told(state_shardings={"weight": layout})
    assert on_ranks(dims, config, lambda member: member.module.place.span("weight", 0)) == spans
    assert on_ranks(dims, config, lambda member: member.module.place.span("weight", 1)) == [range(3)] * len(spans)


def test_it_is_the_layout_in_compute_not_the_one_at_rest():
    config = told(state_shardings={"weight": Transition({**REST, "tp": R}, {**REST, "tp": S(0)})})

    def program(member):
        return len(member.module.weight), member.module.place.span("weight", 0)

    assert on_ranks(ParallelismDims(tp=2), config, program) == [(8, range(0, 4)), (8, range(4, 8))]


def test_the_shape_is_the_global_one():
    config = told(state_shardings={"weight": {**REST, "tp": S(0)}})
    shapes = on_ranks(ParallelismDims(tp=2), config, lambda member: member.module.place.shapes["weight"])
    assert shapes == [(8, 3)] * 2


def test_the_axes_that_cut_an_argument_come_outermost_first_and_can_be_talked_over():
    config = told(
        state_shardings={"weight": {**REST, "tp": R}},
        in_src_shardings={"x": {"dp": S(0), "cp": R, "tp": R}},
        in_dst_shardings={"x": {"dp": S(0), "cp": R, "tp": S(0)}},
    )

    def program(member):
        place = member.module.place
        axes = place.cut("x", 0)
        total = torch.ones(1)
        for axis in axes:
            total = axis.all_reduce(total)
        return [axis.name for axis in axes], place.cut("x", 1), place.cut("mask", 0), total.item()

    assert on_ranks(ParallelismDims(dp_shard=2, tp=2), config, program) == [(["dp", "tp"], (), (), 4.0)] * 4
    assert on_ranks(ParallelismDims(), config, program) == [([], (), (), 1.0)]


def test_of_a_state_that_is_not_declared_a_rank_has_all():
    place = Place(shapes={"weight": (5, 2)}, states={}, inputs={}, axes={})
    assert place.span("weight", 0) == range(5)
    place = Place(shapes={"weight": (5, 2)}, states={"weight": SpmdLayout({})}, inputs={}, axes={})
    assert place.span("weight", 1) == range(2)

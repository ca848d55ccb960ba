"""Storage in which every rank keeps its parameters as compute sees them."""

from __future__ import annotations

import pytest
import torch

from meshwright.backends.storage import Replicated
from meshwright.comm.grid import DENSE, ParallelismDims
from meshwright.types.kinds import I, R, S
from meshwright.types.layout import SpmdLayout

PAIRS = ParallelismDims(dp_replicate=2, dp_shard=3, tp=4, tp_copy=2)
DATA = {"dp": R, "cp": R}
WEIGHT = torch.empty(12, 8, device="meta")


def held(layout, dims=PAIRS):
    return [tuple(Replicated(dims, rank).state(WEIGHT, SpmdLayout(layout), DENSE).shape) for rank in range(dims.world)]


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ({**DATA, "tp": R}, (12, 8)),
        ({**DATA, "tp": I}, (12, 8)),
        ({**DATA, "tp": S(0)}, (3, 8)),
        ({**DATA, "tp": S(1)}, (12, 2)),
        ({**DATA, "tp_kv": S(0), "tp_copy": R}, (6, 8)),
        ({"dp": S(0), "cp": R, "tp": S(1)}, (2, 2)),
    ],
)
def test_a_rank_holds_what_it_computes_with(layout, shape):
    assert held(layout) == [shape] * PAIRS.world


@pytest.mark.parametrize("layout", [{**DATA, "tp": S(0)}, {**DATA, "tp_kv": S(0), "tp_copy": R}])
def test_at_rest_a_layout_is_the_one_of_compute_on_the_base_axes(layout):
    storage = Replicated(PAIRS, 5)
    rest = storage.rest(SpmdLayout(layout), DENSE, (12, 8))
    assert set(rest) == {"dp_replicate", "dp_shard", "dp_shard_ep", "cp", "tp_kv", "tp_copy"}
    here = SpmdLayout(layout).local_shape((12, 8), PAIRS.degrees(), PAIRS.index(5))
    assert rest.local_shape((12, 8), storage.degree, storage.index) == here


def test_the_parts_of_all_ranks_are_the_whole_and_equal_ones_are_copies():
    rest = SpmdLayout({**DATA, "tp_kv": S(0), "tp_copy": R})
    spans = []
    for rank in range(PAIRS.world):
        storage = Replicated(PAIRS, rank)
        spans.append(storage.rest(rest, DENSE, (12,)).span(0, 12, storage.degree, storage.index))
    assert sorted(set(spans), key=lambda span: span.start) == [range(0, 6), range(6, 12)]
    assert spans[:4] == [range(0, 6), range(0, 6), range(6, 12), range(6, 12)]  # neighbours share
    assert spans == spans[:4] * 6


def test_it_makes_no_sums_and_takes_nothing_over():
    storage = Replicated(PAIRS, 0)
    model = torch.nn.Linear(2, 2)
    before = dict(model.named_parameters())
    storage.store(model, [[model]], {})
    storage.accumulate(model, last=False)
    assert storage.owned == frozenset()
    assert all(param is before[name] for name, param in model.named_parameters())


def test_writes_into_the_local_part_go_through():
    storage = Replicated(PAIRS, 0)
    param = torch.nn.Parameter(storage.empty(WEIGHT, torch.device("cpu")))
    assert param.device.type == "cpu"
    storage.local(param).fill_(3.0)
    assert (param == 3.0).all()
    assert not storage.local(param).requires_grad

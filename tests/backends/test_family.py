"""Experts are stored over the ranks that share them; what is cut fills nothing up where some dim divides."""

from __future__ import annotations

import pytest
import torch

from meshwright.backends.storage import Replicated, family
from meshwright.comm.grid import ParallelismDims
from meshwright.types.kinds import R, S
from meshwright.types.layout import SpmdLayout

EXPERT = {"dp_replicate": R, "efsdp": R, "ep": S(0)}
DENSE = {"dp": R, "cp": R, "tp": S(0)}


@pytest.mark.parametrize(
    ("dims", "dense", "expert"),
    [
        (ParallelismDims(dp_shard=4, ep=2), ("dp_shard", "dp_shard_ep"), ("dp_shard",)),
        (ParallelismDims(dp_shard=2, ep=2), ("dp_shard_ep",), ()),
        (ParallelismDims(dp_shard=2, cp=2, tp=2, ep=2), ("dp_shard",), ("dp_shard", "cp")),
        (ParallelismDims(cp=2, tp=2, ep=2), (), ("cp",)),
        (ParallelismDims(dp_shard=4, cp=2, tp=2, ep=8), ("dp_shard", "dp_shard_ep"), ("dp_shard",)),
    ],
    ids=lambda value: value.shown if isinstance(value, ParallelismDims) else "",
)
def test_an_expert_is_cut_over_the_ranks_that_share_it(dims, dense, expert):
    assert family(DENSE, dims).shard == dense
    assert family(EXPERT, dims).shard == expert
    assert family(EXPERT, dims).replicate == ()


def test_replicas_hold_copies_of_experts_too():
    dims = ParallelismDims(dp_replicate=2, dp_shard=2, ep=2)
    assert family(EXPERT, dims).replicate == family(DENSE, dims).replicate == ("dp_replicate",)


@pytest.mark.parametrize(
    ("shape", "dim"), [((8, 6, 4), 0), ((2, 6, 8), 2), ((3, 8, 6), 1), ((3, 5), 0), ((4,), 0), ((), 0)]
)
def test_the_first_dim_that_divides_is_cut(shape, dim):
    dims = ParallelismDims(dp_shard=4)
    assert family(DENSE, dims).cut(shape, dims.base) == dim


@pytest.mark.parametrize("length", [6, 5, 4, 1, 0])
def test_a_length_is_dealt_over_all_ranks_of_a_family_as_one(length):
    """Over dp_shard and dp_shard_ep together, as torch deals it, and not first over one and then over the other."""
    dims = ParallelismDims(dp_shard=4, ep=2)
    own = family({"dp": R}, dims)
    assert own.joint == "dp_shard+dp_shard_ep"
    layout, held = SpmdLayout({own.joint: S(0)}), []
    for rank in range(4):
        storage = Replicated(dims, rank)
        held.append(len(layout.span(0, length, storage.degree, storage.index)))
    assert held == [len(piece) for piece in torch.zeros(length).chunk(4)] + [0] * (
        4 - len(torch.zeros(length).chunk(4))
    )

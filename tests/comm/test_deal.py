"""`deal` says how many rows travel between whom: what each rank sends is what the other expects."""

from __future__ import annotations

import itertools

import pytest
import torch

from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import axis, current_mesh
from meshwright.comm.shapes import mesh
from meshwright.comm.threads import run_ranks
from meshwright.comm.transport import Alone, Reordered
from meshwright.errors import SpmdTypeError

COUNTS = [[3, 0, 1, 5], [0, 0, 0, 2], [1, 1, 1, 1], [0, 0, 0, 0]]
"""Rows of each rank for each bin: bins 0 and 1 are rank 0's, where there are two ranks."""


@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_learns_what_it_is_sent(size):
    counts = torch.tensor(COUNTS[:size])
    each = 4 // size

    def program(rank):
        return axis("tp").deal(counts[rank], int(counts[rank].sum()))

    for rank, (send, receive, received) in enumerate(run_ranks(ParallelismDims(tp=size), program)):
        own = counts[:, rank * each : (rank + 1) * each]
        assert torch.equal(received, own)
        assert receive == own.sum(1).tolist()
        assert send == counts[rank].view(size, each).sum(1).tolist()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3)))[1:])
def test_with_ranks_in_another_order(order):
    """Place i of the reordered axis is place order[i] of the other."""
    counts = torch.tensor([[1, 2, 4], [8, 16, 32], [64, 128, 256]])

    def program(rank):
        group = Reordered("tp", axis("tp"), order, {"tp": 3})
        return group.index, group.deal(counts[group.index], int(counts[group.index].sum()))

    for index, (send, receive, received) in run_ranks(ParallelismDims(tp=3), program):
        assert send == counts[index].tolist()
        assert receive == counts[:, index].tolist() == received.flatten().tolist()


def test_over_two_axes_in_either_order():
    counts = torch.randint(9, (4, 8), generator=torch.Generator().manual_seed(0))

    def program(rank):
        view = current_mesh()
        found = []
        for names in (("dp", "tp"), ("tp", "dp")):
            group = view.joined(names)
            found.append((group.index, group.deal(counts[group.index], int(counts[group.index].sum()))))
        return found

    for index, (send, receive, received) in itertools.chain(*run_ranks(ParallelismDims(dp_shard=2, tp=2), program)):
        assert send == counts[index].view(4, 2).sum(1).tolist()
        assert torch.equal(received, counts[:, 2 * index : 2 * index + 2])
        assert receive == received.sum(1).tolist()


def test_one_rank_keeps_all():
    counts = torch.tensor([3, 0, 1])
    send, receive, received = Alone("ep").deal(counts, 4)
    assert (send, receive, received.tolist()) == ([4], [4], [[3, 0, 1]])


@pytest.mark.parametrize("rows", [0, 1, 7, 96, 4096])
@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("meta", [True, False])
def test_shapes_draw_a_table_that_fits_for_all_ranks(size, rows, meta):
    counts = torch.zeros(2 * size, dtype=torch.int64, device="meta" if meta else None)
    dealt = [mesh(ep=size, rank=rank)["ep"].deal(counts, rows) for rank in range(size)]
    sends = [send for send, _, _ in dealt]
    for rank, (send, receive, received) in enumerate(dealt):
        assert sum(send) == rows
        assert receive == [theirs[rank] for theirs in sends]
        assert (received.shape, received.dtype, received.is_meta) == ((size, 2), torch.int64, meta)
        assert meta or received.sum(1).tolist() == receive
        assert mesh(ep=size, rank=rank)["ep"].deal(counts, rows)[:2] == (send, receive)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_in_what_shapes_draw_wrong_splits_show(size):
    """What is sent is not what is received, and no two neighbours of either are alike."""
    for rank in range(size):
        send, receive, _ = mesh(ep=size, rank=rank)["ep"].deal(torch.zeros(size, device="meta"), 4096)
        assert sum(receive) != sum(send)
        assert send != receive
        assert len(set(send)) > 1
        assert len(set(receive)) > 1


@pytest.mark.parametrize("send", [[2, 3], [0, 0], [4, 4]])
def test_an_exchange_of_shapes_has_a_place_for_every_row(send):
    with pytest.raises(SpmdTypeError, match=f"{sum(send)} in all, of a tensor of 6 rows"):
        mesh(ep=2)["ep"].all_to_all(torch.empty(6, 2, device="meta"), [1, 1], send)

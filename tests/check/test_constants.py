"""Constants that are as long as what a rank holds of a sharded dim: they are cut as it is, and right on one device."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.comm.grid import ParallelismDims
from meshwright.errors import SpmdTypeError
from tests.cases.agreement import Held, agrees
from tests.check.judged import on, refusal
from tests.denotation import sample

R, I, P, V, S = spmd.R, spmd.I, spmd.P, spmd.V, spmd.S
WIDTH = 3


def wide():
    return torch.arange(float(WIDTH), dtype=torch.float64)


def shifted(x):
    """What a decoder reads: each row one place later, with a 1 in front."""
    out = x.new_zeros(x.shape)
    out[:, 1:] = x[:, :-1].clone()
    out[:, 0] = 1.0
    return out


def bits(x):
    return torch.ones(x.shape, dtype=torch.int64, device=x.device)


MADE = {
    "expanded": lambda x: x * wide().expand(x.shape[0], -1),
    "expanded to a shape": lambda x: x * wide()[None].expand(x.shape),
    "expanded by keyword": lambda x: x * wide()[None].expand(size=x.shape),
    "repeated": lambda x: x * wide().repeat(x.shape[0], 1),
    "broadcast": lambda x: x * torch.broadcast_to(wide(), x.shape),
    "a mask": lambda x: x.masked_fill((wide() > 1).expand(x.shape[0], -1), 7.0),
    "counted along": lambda x: x + bits(x).cumsum(1),
    "a table by places": lambda x: wide()[bits(x).cumsum(1) - 1] * x,
    "ones in a sum": lambda x: (torch.ones(x.shape[0], dtype=x.dtype) @ x).sum(),
    "as many as rows": lambda x: x.sum() * 2.0 + torch.ones(x.shape[0], dtype=x.dtype).sum(),
    "their number": lambda x: torch.full((x.shape[0], 1), 2.0, dtype=x.dtype).sum() + x.sum(),
    "a mask in a view": lambda x: x * bits(x)[:, None].squeeze(1).cumsum(-1),
    "half of it": lambda x: x * torch.ones(x.shape[0] * 2, dtype=x.dtype)[:1].sum(),
    "zeros": lambda x: x + x.new_zeros(x.shape[0], 1),
    "a buffer that is written": shifted,
    "an entry of each row": lambda x: x[torch.arange(x.shape[0]), bits(x).sum(1) - 2],
    "all of a dim": lambda x: x[: x.shape[0]] + x.narrow(0, 0, x.shape[0]),
}


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(sorted(MADE)),
    axis=st.sampled_from(["tp", "dp", "cp"]),
    degree=st.sampled_from([1, 2, 3]),
    each=st.integers(1, 3),
)
def test_it_is_right_on_one_device(name, axis, degree, each):
    x = Held(sample((degree * each, WIDTH), 1), {axis: S(0)})
    kind = agrees(MADE[name], on(axis, degree), x=x)[axis]
    assert kind in (S(0), P)


def entry(x):
    """One place of each row."""
    return torch.arange(x.shape[0]), bits(x).sum(1) - 2


def subtracted(x):
    x[entry(x)] -= 2.0
    return x * 1.0


def put(x):
    return x.index_put(entry(x), torch.tensor(2.0, dtype=x.dtype))


def added(x):
    return x.index_put(entry(x), x.sum(1), accumulate=True)


def put_in_place(x):
    found = torch.zeros_like(x)
    return found.index_put_(entry(x), x[:, 0]) + x


@pytest.mark.parametrize("write", [subtracted, put, added, put_in_place])
def test_an_entry_of_each_row_is_written(write):
    x = Held(sample((4, WIDTH), 1), {"tp": S(0)}, wants=write is not subtracted)
    assert agrees(write, on("tp", 2), x=x) == {"tp": S(0)}


BOTH = ParallelismDims(cp=2, tp=2)
DIAGONALS = {
    "picked": lambda x: x[torch.arange(x.shape[0]), torch.arange(x.shape[1])],
    "put": lambda x: x.index_put((torch.arange(x.shape[0]), torch.arange(x.shape[1])), torch.tensor(0.0)),
}


@pytest.mark.parametrize("name", DIAGONALS)
def test_a_diagonal_of_what_a_rank_holds_is_none_of_the_whole(name):
    x = Held(sample((4, 4), 1), {"cp": S(0), "tp": S(1)})
    assert refusal(lambda rank: DIAGONALS[name](x.on_rank(BOTH, rank)), BOTH).code is Code.LENGTH


def test_a_grid_of_places_is_all_that_a_rank_holds():
    x = Held(sample((4, 6), 1), {"cp": S(0), "tp": S(1)})
    found = agrees(lambda x: x[torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])], BOTH, x=x)
    assert found == {"cp": S(0), "tp": S(1)}


VALUES = {
    "as long as a part": lambda r, x: r[: x.shape[0]].sum(),
    "from there": lambda r, x: r[x.shape[0] :].sum(),
    "one there": lambda r, x: r[x.shape[0] - 1],
    "narrowed": lambda r, x: r.narrow(0, 0, x.shape[0]).sum(),
    "narrowed from there": lambda r, x: r.narrow(0, x.shape[0], 1).sum(),
    "in pieces": lambda r, x: r.split(x.shape[0])[0].sum(),
    "in so many": lambda r, x: r.chunk(x.shape[0])[0].sum(),
    "the highest": lambda r, x: r.topk(x.shape[0], dim=0)[0].sum(),
    "turned": lambda r, x: torch.roll(r, x.shape[0], 0)[0],
    "below a diagonal": lambda r, x: torch.tril(r, x.shape[0]).sum(),
    "padded": lambda r, x: F.pad(r, (0, 0, 0, x.shape[0])).mean(),
    "one more": lambda r, x: r[:1].expand(x.shape[0] + 1, WIDTH).sum(),
    "spread where it is whole": lambda r, x: r[: int(x.shape[0])].expand(x.shape[0], WIDTH).sum(),
    "a view as long": lambda r, x: r.view(x.shape[0], -1).amax(0).sum(),
    "a view behind it": lambda r, x: r.reshape(-1, x.shape[0]).sum(0),
    "a dim as several": lambda r, x: r.flatten().unflatten(0, (x.shape[0], -1)).sum(0),
    "rounded up": lambda r, x: r * math.ceil(x.shape[0] / 3),
    "rounded down": lambda r, x: r * math.floor(x.shape[0]),
    "copies of many": lambda r, x: r.repeat(x.shape[0], 1).sum(),
    "a mean by ones": lambda r, x: (r.sum() + x.sum()) / torch.ones(x.shape[0]).sum(),
    "a mean by numel": lambda r, x: x.sum() / torch.ones(x.shape[0]).numel(),
    "a mean by a length of it": lambda r, x: x.sum() / torch.zeros(x.shape[0]).shape[0],
    "a line as long": lambda r, x: r.sum() * torch.linspace(0, 1, x.shape[0]).sum(),
    "ones on a diagonal": lambda r, x: r.sum() * torch.eye(x.shape[0]).sum(),
    "bytes": lambda r, x: r.sum() * x.nbytes,
    "rows as far": lambda r, x: r[torch.arange(x.shape[0])].sum(),
    "rows nearly as far": lambda r, x: r[torch.arange(x.shape[0] - 1)].sum(),
    "rows from 0": lambda r, x: r[torch.arange(0, x.shape[0], 1)[None]].sum(),
    "rows in a grid": lambda r, x: r[torch.arange(x.shape[0]).view(2, -1), 0].sum(),
    "rows selected": lambda r, x: r.index_select(0, torch.arange(x.shape[0])).sum(),
    "rows looked up": lambda r, x: F.embedding(torch.arange(end=x.shape[0]), r).sum(),
    "rows gathered": lambda r, x: r.gather(0, torch.arange(x.shape[0])[:, None]).sum(),
    "places taken": lambda r, x: r.take(torch.arange(x.shape[0])).sum(),
    "rows filled": lambda r, x: r.index_fill(0, torch.arange(x.shape[0]), 0.0).sum(),
    "rows with places": lambda r, x: (r[:4] * torch.arange(x.shape[0])[:, None]).sum(),
    "places of other rows": lambda r, x: (x * torch.arange(x.shape[0])[:, None]).sum(),
    "a line to a length": lambda r, x: r.sum() * torch.linspace(0, 1, steps=x.shape[0])[1],
    "a line by a length": lambda r, x: r.sum() * torch.logspace(0, 1, 4, base=x.shape[0])[1],
}


@pytest.mark.parametrize("name", VALUES)
def test_what_one_device_would_not_have_is_refused(name):
    dims = on("tp", 2)
    r, x = Held(sample((8, WIDTH), 1), {"tp": R}), Held(sample((4, WIDTH), 2), {"tp": S(0)})
    problem = refusal(lambda rank: VALUES[name](r.on_rank(dims, rank), x.on_rank(dims, rank)), dims)
    assert problem.code in (Code.LENGTH, Code.NOT_LINEAR, Code.PARTIAL_PLUS)
    assert "'tp'" in problem.what


OWN = {
    "the last place": lambda n: torch.arange(n).max(),
    "the sum of places": lambda n: torch.arange(n).sum(),
    "places as numbers": lambda n: torch.arange(n).float().mean(),
    "which is first": lambda n: (torch.arange(n) < 1).float()[-1],
    "a line from elsewhere": lambda n: torch.arange(3.0, 3.0 + n).sum(),
    "one length on two dims": lambda n: torch.ones(n, n).sum(),
    "half of these": lambda n: torch.ones(n, n).tril().sum(),
    "on their diagonal": lambda n: torch.full((n, n), 2.0).trace(),
    "places over a diagonal": lambda n: torch.triu_indices(n, n).sum(),
    "a part of a line": lambda n: torch.arange(8)[:n].sum(),
    "what comes behind": lambda n: torch.arange(8)[n:].sum(),
    "a part of a table": lambda n: torch.eye(8)[None, :, :n].sum(),
    "narrowed": lambda n: torch.arange(8).narrow(0, 0, n).sum(),
    "in pieces": lambda n: torch.arange(8).split(n)[0].sum(),
    "turned": lambda n: torch.arange(8).roll(n)[0],
    "padded": lambda n: F.pad(torch.ones(2), (0, n), value=1.0).sum(),
    "a mask by a length": lambda n: (torch.arange(8) < n).sum(),
    "a mask by a length, the other way": lambda n: torch.where(n > torch.arange(8), 1.0, 0.0).sum(),
    "set up to it": lambda n: (lambda m: (m.__setitem__(slice(None, n), 1.0), m)[1])(torch.zeros(8)).sum(),
    "zeros as far": lambda n: torch.zeros(8)[:n].exp().sum(),
    "as long as a place": lambda n: torch.ones(spmd.axis_index("tp") + 1).sum(),
}
LONG = {
    "zeros as far": lambda n: torch.zeros(8)[:n].numel(),
    "places": lambda n: torch.arange(n).numel(),
    "a dim of these": lambda n: torch.arange(n).shape[0],
    "the second of two": lambda n: torch.zeros(n, n).size(1),
    "places over a diagonal": lambda n: torch.tril_indices(n, n).shape[1],
}
"""What one device makes of the length over all ranks; each rank makes something else."""


@pytest.mark.parametrize("name", OWN)
def test_what_counts_to_a_local_length_is_each_ranks_own(name):
    dims = on("tp", 2)
    r, x = Held(sample((8, WIDTH), 1), {"tp": R}), Held(sample((4, WIDTH), 2), {"tp": S(0)})
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck():
        made = r.on_rank(dims, 0) * OWN[name](x.on_rank(dims, 0).shape[0])
        assert spmd.layout_of(made)["tp"] is V


WRITTEN = {
    "rows up to it": lambda o, n, r: o.__setitem__(slice(None, n), r[0]),
    "rows behind it": lambda o, n, r: o.__setitem__(slice(n, None), r[0]),
    "a row at it": lambda o, n, r: o.__setitem__(n, r[0]),
    "columns up to it": lambda o, n, r: o.__setitem__((Ellipsis, slice(None, n - 2)), r[:, :2]),
    "copied": lambda o, n, r: o[:n].copy_(r[:4]),
    "narrowed and copied": lambda o, n, r: o.narrow(0, 0, n).copy_(r[:4]),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_up_to_a_local_length_is_each_ranks_own(name):
    dims = on("tp", 2)
    r, x = Held(sample((8, WIDTH), 1), {"tp": R}), Held(sample((8, WIDTH), 2), {"tp": S(0)})
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck():
        buffer = torch.zeros(8, WIDTH, dtype=torch.float64)
        WRITTEN[name](buffer, x.on_rank(dims, 0).shape[0], r.on_rank(dims, 0))
        assert spmd.layout_of(r.on_rank(dims, 0) * buffer)["tp"] is V


@pytest.mark.parametrize("make", [torch.zeros, torch.empty])
def test_a_buffer_that_is_taken_as_far_as_a_dim_takes_that_dim(make):
    def program(x):
        buffer = make(12, WIDTH, dtype=x.dtype)[: x.shape[0]]
        return buffer.copy_(x) * x

    assert agrees(program, on("tp", 2), x=Held(sample((8, WIDTH), 2), {"tp": S(0)})) == {"tp": S(0)}


@pytest.mark.parametrize("name", LONG)
def test_as_long_as_a_rank_makes_it_is_no_number_for_all(name):
    dims, x = on("tp", 2), Held(sample((4, WIDTH), 2), {"tp": S(0)})

    def program(rank):
        mine = x.on_rank(dims, rank)
        return mine.sum(0) / LONG[name](mine.shape[0])

    assert refusal(program, dims).code is Code.LENGTH


def test_a_part_of_a_ranks_own_vector_is_as_long_as_the_rank_made_it():
    dims, x = on("tp", 2), Held(sample((4, WIDTH), 2), {"tp": S(0)})
    own = Held(sample((2, 8), 3), {"tp": V})

    def program(rank):
        mine = x.on_rank(dims, rank)
        part = own.on_rank(dims, rank)[: mine.shape[0]]
        assert spmd.layout_of(part) == {"tp": V}
        return mine.sum(0) / part.shape[0]

    assert refusal(program, dims).code is Code.LENGTH


def places(x, axis):
    n = x.shape[0]
    if not spmd.is_type_checking():
        return torch.arange(n)
    return spmd.assert_type(torch.arange(n) + spmd.axis_index(axis) * n, {axis: S(0)})


COUNTED = {
    "all": lambda r, x, axis: r[torch.arange(spmd.size(x, 0, axis) if spmd.is_type_checking() else 12)].sum(0),
    "a rank's own": lambda r, x, axis: r[places(x, axis)] * x,
    "positions in a sum": lambda r, x, axis: (x * places(x, axis)[:, None]).sum(),
}


@settings(max_examples=20, deadline=None)
@given(name=st.sampled_from(sorted(COUNTED)), axis=st.sampled_from(["tp", "cp"]), degree=st.integers(1, 3))
def test_the_fix_of_places_is_right_on_one_device(name, axis, degree):
    r, x = Held(sample((12, WIDTH), 1), {axis: R}), Held(sample((12, WIDTH), 2), {axis: S(0)})
    agrees(lambda r, x: COUNTED[name](r, x, axis), on(axis, degree), r=r, x=x)


def test_in_a_region_places_are_those_of_a_rank():
    dims = on("tp", 2)
    r, x = Held(sample((8, WIDTH), 1), {"tp": R}), Held(sample((4, WIDTH), 2), {"tp": S(0)})

    def program(rank):
        whole, own = r.on_rank(dims, rank), x.on_rank(dims, rank)
        return [whole[: own.shape[0]], whole.narrow(0, 0, own.shape[0]), whole.split(own.shape[0])[0]]

    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck(local=True):
        assert {spmd.layout_of(each)["tp"] for each in program(0)} == {R}


def test_a_tag_that_is_cut_survives_pickling():
    import copy

    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck():
        x = spmd.assert_type(torch.ones(2, 3), {"tp": S(0)})
        made = copy.deepcopy(torch.zeros(x.shape[0], 3))
        assert spmd.layout_of(made) == {"tp": S(0)}
        assert spmd.layout_of(x + made) == {"tp": S(0)}


def test_a_buffer_takes_the_type_of_the_value_and_not_of_the_places():
    dims = ParallelismDims(dp_shard=2, tp=2)
    x = Held(sample((12, 6), 1), {"tp": I, "dp": S(1)})
    places = Held(torch.arange(12).flip(0), {"tp": R, "dp": I}, wants=False)

    def turned(x, i):
        out = torch.zeros_like(x)
        out[i] = x
        return out

    assert agrees(turned, dims, x=x, i=places) == x.layout


def test_of_an_empty_buffer_its_author_says_what_it_will_be():
    with spmd.set_current_mesh(spmd.mesh(dp=2, tp=2)), spmd.typecheck():
        x = spmd.assert_type(torch.ones(2, 3), {"tp": S(0), "dp": S(1)})
        out = spmd.assert_type(torch.empty(2 * x.shape[0], x.shape[1]), {"tp": R})
        assert spmd.layout_of(out) == {"tp": R, "dp": S(1)}
        parts = spmd.assert_type(torch.zeros_like(x), {"tp": P, "dp": R})
        assert spmd.layout_of(parts) == {"tp": P, "dp": R}
        with pytest.raises(SpmdTypeError):
            spmd.assert_type(torch.ones(x.shape[0]), {"tp": R})

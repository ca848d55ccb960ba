"""Lengths that ranks do not divide: with sizes stated R -> S(0) -> R is the exact round trip; without, an early error.

5 rows over tp 2, and many others; ranks may hold nothing.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from tests.cases.agreement import Held, agrees
from tests.check.judged import judged, on, refusal, says
from tests.denotation import denoted, sample

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S
AXES = st.sampled_from(["tp", "cp", "dp"])


def sizes_of(length, degree):
    """As even as can be, the longer parts first."""
    return tuple(length // degree + (place < length % degree) for place in range(degree))


@st.composite
def cuts(draw):
    """A length, and how it is spread: evenly as far as that goes, or in any other way."""
    degree = draw(st.integers(1, 5))
    even = sizes_of(draw(st.integers(1, 9)), degree)
    return draw(st.one_of(st.just(even), st.lists(st.integers(0, 4), min_size=degree, max_size=degree).map(tuple)))


@settings(max_examples=40)
@given(axis=AXES, sizes=cuts().filter(any), dim=st.sampled_from([0, 1]), seed=st.integers(0, 99))
def test_there_and_back_is_the_same_and_so_is_the_gradient(axis, sizes, dim, seed):
    """Also with more ranks than rows."""
    dims, kind = on(axis, len(sizes)), S(dim, sizes)
    shape = (sum(sizes), 2) if dim == 0 else (2, sum(sizes))
    whole, seed_ = sample(shape, seed), sample(shape, seed + 1)

    def program(rank):
        x = Held(whole, {axis: R}).on_rank(dims, rank)
        part = spmd.convert(x, axis, src=R, dst=kind)
        assert spmd.layout_of(part) == {axis: kind}
        assert part.shape[dim] == sizes[dims.index(rank)[axis]]
        back = spmd.all_gather(part * 2.0, axis, src=kind, dst=R)
        (gradient,) = torch.autograd.grad(
            back, x, spmd.assert_type(_own(seed_, dims, rank, axis), {axis: P}), retain_graph=True
        )
        assert spmd.layout_of(gradient) == {axis: P}
        return back.detach(), gradient

    backs, gradients = zip(*judged(program, dims), strict=True)
    assert all(torch.equal(back, whole * 2) for back in backs)
    assert torch.equal(denoted({axis: P}, gradients, dims), seed_ * 2)


def _own(whole, dims, rank, axis):
    """The first rank has all of the sum."""
    return whole.clone() if dims.index(rank)[axis] == 0 else torch.zeros_like(whole)


STEPS = {
    "invariant": (
        I,
        lambda x, axis, kind: spmd.all_gather(spmd.convert(x, axis, src=I, dst=kind), axis, src=kind, dst=I),
        I,
    ),
    "summed": (P, lambda x, axis, kind: spmd.reduce_scatter(x, axis, src=P, dst=kind), None),
    "redistributed": (
        R,
        lambda x, axis, kind: spmd.redistribute(spmd.redistribute(x, axis, src=R, dst=kind), axis, src=kind, dst=R),
        R,
    ),
}


@settings(max_examples=25)
@given(axis=AXES, sizes=cuts().filter(any), step=st.sampled_from(sorted(STEPS)), seed=st.integers(0, 99))
def test_every_step_denotes_the_same(axis, sizes, step, seed):
    kind, run, out = STEPS[step]
    x = Held(sample((sum(sizes), 2), seed), {axis: kind})
    program = lambda x: run(x, axis, S(0, sizes)) if spmd.is_type_checking() else x * 1.0  # noqa: E731
    assert agrees(program, on(axis, len(sizes)), x=x) == {axis: S(0, sizes) if out is None else out}


@settings(max_examples=20)
@given(axis=AXES, sizes=cuts().filter(any), seed=st.integers(0, 99))
def test_what_is_computed_on_the_parts(axis, sizes, seed):
    dims, layout = on(axis, len(sizes)), {axis: S(0, sizes)}
    x, y = (Held(sample((sum(sizes), 3), seed + n), layout) for n in (0, 1))
    w = Held(sample((2, 3), seed + 2), {axis: R})
    assert agrees(lambda x, y: x * y + 2 * x, dims, x=x, y=y) == layout
    assert agrees(lambda x, w: (x @ w.t()).softmax(-1), dims, x=x, w=w) == layout
    assert agrees(lambda x, y: x.t() @ y, dims, x=x, y=y) == {axis: P}
    assert agrees(lambda x: x.sum(0), dims, x=x) == {axis: P}


@settings(max_examples=25)
@given(axis=AXES, degree=st.integers(2, 5), length=st.integers(1, 9), dim=st.sampled_from([0, 1]))
def test_without_sizes_it_is_an_early_error_with_both_numbers(axis, degree, length, dim):
    if length % degree == 0:
        length += 1
    dims, shape = on(axis, degree), (length, 4) if dim == 0 else (4, length)

    def program(rank, kind):
        x = spmd.assert_type(torch.ones(shape), {axis: R})
        return spmd.convert(x, axis, src=R, dst=kind)

    problem = refusal(lambda rank: program(rank, S(dim)), dims)
    assert str(length) in problem.what
    assert str(degree) in problem.what
    assert problem.fix
    judged(lambda rank: program(rank, S(dim, sizes_of(length, degree))), dims)


def test_sizes_that_are_not_those_of_the_ranks_are_refused():
    for sizes in ((3, 3), (5,), (2, 2, 1), (2, 3)):
        program = lambda rank, sizes=sizes: spmd.assert_type(  # noqa: E731
            torch.ones(3 if rank == 0 else 2), {"tp": S(0, sizes)}
        )
        refusal(program, on("tp", 2))
    judged(lambda rank: spmd.assert_type(torch.ones(3 if rank == 0 else 2), {"tp": S(0, (3, 2))}), on("tp", 2))


def test_two_that_are_cut_at_other_places_do_not_meet():
    def program(rank):
        a = spmd.assert_type(torch.ones((3, 2)[rank]), {"tp": S(0, (3, 2))})
        b = spmd.convert(spmd.assert_type(torch.ones(5), {"tp": R}), "tp", src=R, dst=S(0, (2, 3)))
        return a + b

    says(refusal(program, on("tp", 2)), "tp", "S(0, (3, 2)), S(0, (2, 3))")


def test_the_whole_length_is_known_on_every_rank():
    def program(rank):
        x = spmd.assert_type(torch.ones((3, 2)[rank]), {"tp": S(0, (3, 2))})
        return spmd.size(x, 0)

    assert judged(program, on("tp", 2)) == [5, 5]

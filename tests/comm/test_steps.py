"""Every step of the table, on 2, 3 and 4 ranks: it keeps what the tensor denotes, and its backward is its adjoint."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import axis
from meshwright.comm.steps import BoundStep
from meshwright.comm.threads import run_ranks
from meshwright.types.kinds import I, P, R, S, SpmdType, V
from meshwright.types.transition import CHANGES, CLAIMS, Step, claim, step
from tests.denotation import denoted, local, paired, sample

UNSHARDED = {"R": R, "I": I, "V": V, "P": P}
CLAIMED = tuple(f"{pair} claim" for pair in sorted(CLAIMS))
PAIRS = (*CHANGES, *CLAIMED)
LOCAL_LENGTHS = st.integers(0, 3)


@dataclass(frozen=True)
class Case:
    """A step between two types, and the shapes of the tensors that they denote."""

    step: Step
    src_shape: tuple[int, ...]
    dst_shape: tuple[int, ...]
    seed: int


@st.composite
def cases(draw: st.DrawFn, pair: str, ranks: int) -> Case:
    """Shapes of 0 to 3 dims, some of them empty; any dim sharded, evenly or in pieces of any length."""
    shape = draw(st.lists(LOCAL_LENGTHS, max_size=3))
    letters = pair.split()[:2]
    sharded = [place for place, letter in enumerate(letters) if letter == "S"]
    while len(shape) < len(sharded):
        shape.append(draw(LOCAL_LENGTHS))
    kinds: list[SpmdType] = [UNSHARDED.get(letter, R) for letter in letters]
    for place, dim in zip(sharded, draw(st.permutations(range(len(shape)))), strict=False):
        pieces = draw(st.none() | st.lists(LOCAL_LENGTHS, min_size=ranks, max_size=ranks).map(tuple))
        kinds[place] = S(dim, pieces)
        shape[dim] = shape[dim] * ranks if pieces is None else sum(pieces)
    src, dst = kinds
    seed = draw(st.integers(0, 999))
    if pair in CLAIMED:
        (change,) = claim("tp", src, dst)
        shapes = [(ranks, *shape) if kind is V else tuple(shape) for kind in kinds]
    else:
        change = step("tp", src, dst, expert_mode=True)
        shapes = [(ranks, *shape) if V in kinds else tuple(shape)] * 2
    assert change is not None
    return Case(change, *shapes, seed)


def on_ranks(ranks, cases_, program):
    """`program(bound step, local of whole, case)` for all cases; for each case the results of all ranks."""
    dims = ParallelismDims(tp=ranks)

    def every_case(rank):
        def run(case):
            return program(
                BoundStep(case.step, axis("tp")),
                lambda kind, shape, seed: local({"tp": kind}, sample(shape, seed + case.seed), dims, rank),
                case,
            )

        return [run(case) for case in cases_]

    return dims, list(zip(*run_ranks(dims, every_case), strict=True))


def some(pair: str, ranks: int) -> st.SearchStrategy[list[Case]]:
    return st.lists(cases(pair, ranks), min_size=8, max_size=14)


each_step_on_each_axis = pytest.mark.parametrize(
    ("pair", "ranks"), [(pair, ranks) for pair in PAIRS for ranks in (2, 3, 4)]
)


@each_step_on_each_axis
@settings(max_examples=3)
@given(data=st.data())
def test_forward_keeps_the_denoted_value(pair, ranks, data):
    drawn = data.draw(some(pair, ranks))

    def forward(bound, piece, case):
        x = piece(case.step.src, case.src_shape, 0)
        return x, bound(x)

    dims, results = on_ranks(ranks, drawn, forward)
    for case, result in zip(drawn, results, strict=True):
        xs, ys = zip(*result, strict=True)
        if case.step.is_claim:
            assert all(torch.equal(x, y) for x, y in result), "a claim keeps the local value"
        else:
            whole = denoted({"tp": case.step.src}, xs, dims)
            assert torch.equal(denoted({"tp": case.step.dst}, ys, dims), whole)
            assert torch.equal(whole, sample(case.src_shape, case.seed))


@each_step_on_each_axis
@settings(max_examples=3)
@given(data=st.data())
def test_backward_is_the_adjoint_and_has_the_dual_type(pair, ranks, data):
    drawn = data.draw(some(pair, ranks))

    def both_ways(bound, piece, case):
        x = piece(case.step.src, case.src_shape, 0).requires_grad_()
        g = piece(case.step.dst.dual, case.dst_shape, 1)
        y = bound(x)
        (gradient,) = torch.autograd.grad(y, x, g)
        return x.detach(), y.detach(), g, gradient

    dims, results = on_ranks(ranks, drawn, both_ways)
    for case, result in zip(drawn, results, strict=True):
        xs, ys, gs, gradients = zip(*result, strict=True)
        after = paired({"tp": case.step.dst}, ys, gs, dims)
        assert after == paired({"tp": case.step.src}, xs, gradients, dims)


@each_step_on_each_axis
@settings(max_examples=3)
@given(data=st.data())
def test_the_derivative_of_the_backward_is_the_forward(pair, ranks, data):
    drawn = data.draw(some(pair, ranks))

    def twice(bound, piece, case):
        x = piece(case.step.src, case.src_shape, 0).requires_grad_()
        g = piece(case.step.dst.dual, case.dst_shape, 1).requires_grad_()
        h = piece(case.step.src, case.src_shape, 2)
        (gradient,) = torch.autograd.grad(bound(x), x, g, create_graph=True)
        (back,) = torch.autograd.grad(gradient, g, h)
        return back, bound(h)

    _, results = on_ranks(ranks, drawn, twice)
    assert all(torch.equal(back, again) for result in results for back, again in result)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("pair", [pair for pair in CHANGES if not pair.endswith("P")])
@settings(max_examples=3)
@given(data=st.data())
def test_second_derivatives_are_those_of_one_device(pair, ranks, data):
    """loss(x) = sum(c * x**3), so the product of its Hessian with h is 6 c x h."""
    drawn = data.draw(some(pair, ranks))

    def hessian_times(bound, piece, case):
        x = piece(case.step.src, case.src_shape, 0).requires_grad_()
        c = piece(case.step.dst.dual, case.dst_shape, 1)  # where y is R, each rank has its share of the loss
        h = piece(case.step.src, case.src_shape, 2)
        y = bound(x)
        (gradient,) = torch.autograd.grad((c * y**3).sum(), x, create_graph=True)
        (product,) = torch.autograd.grad(gradient, x, h, materialize_grads=True)
        return product

    dims, results = on_ranks(ranks, drawn, hessian_times)
    for case, products in zip(drawn, results, strict=True):
        x, c, h = (sample(case.src_shape, case.seed + i) for i in range(3))
        assert torch.equal(denoted({"tp": case.step.src.dual}, products, dims), 6 * c * x * h)

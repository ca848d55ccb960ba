"""What may be done to a value that is a sum over ranks still to be taken: only what is linear in it.

Refused: P + 10, P.max(), P > 0, P.item(), clamp_, div with rounding, sum to whole numbers, nansum, a cast to whole
numbers or to a lower precision; masked_fill with -inf, pad with 1, addcmul of R. Accepted: P * 0.5, P[2:5],
index_select, pad with 0, masked_fill with 0, linear with an R weight, sum([P, P]), zeros += P, lerp, repr.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from tests.check.judged import judged, on, refusal, says
from tests.denotation import denoted, local, sample

TWO = on("tp", 2)


def partial(shape, axis, dims, rank, seed=0, dtype=torch.float64):
    part = local({axis: spmd.P}, sample(shape, seed), dims, rank).to(dtype).requires_grad_()
    return spmd.assert_type(part, {axis: spmd.P})


def whole(value, axis):
    return spmd.assert_type(value, {axis: spmd.R})


def on_partial(use, axis="tp", dims=TWO, shape=(6, 3), dtype=torch.float64):
    """`use(P, R)` where R(values) is a replicated tensor."""

    def program(rank):
        return use(partial(shape, axis, dims, rank, dtype=dtype), lambda value: whole(value, axis))

    return program


MASK = torch.tensor([True, False, True])

REFUSED = {
    "P + 10": lambda p, r: p + 10,
    "10 - P": lambda p, r: 10 - p,
    "P + R": lambda p, r: p + r(torch.ones(3)),
    "P + a constant": lambda p, r: p + torch.ones(3),
    "P += 1": lambda p, r: p.detach().add_(1),
    "P.max()": lambda p, r: p.max(),
    "P > 0": lambda p, r: p > 0,
    "P.item()": lambda p, r: p.sum().item(),
    "float(P)": lambda p, r: float(p.sum().detach()),
    "if P": lambda p, r: 1 if p.sum().detach() else 0,
    "format(P)": lambda p, r: f"{p.sum():.2f}",
    "tolist": lambda p, r: p.tolist(),
    "clamp_": lambda p, r: p.detach().clamp_(0, 1),
    "relu": lambda p, r: F.relu(p),
    "exp": lambda p, r: torch.exp(p),
    "softmax": lambda p, r: torch.softmax(p, -1),
    "div with rounding": lambda p, r: torch.div(p, 2, rounding_mode="floor"),
    "P // 2": lambda p, r: p.detach() // 2,
    "1 / P": lambda p, r: 1 / p,
    "sum to whole numbers": lambda p, r: torch.sum(p.detach(), dtype=torch.int64),
    "nansum": lambda p, r: torch.nansum(p),
    "int": lambda p, r: p.int(),
    "to(int64)": lambda p, r: p.to(torch.int64),
    "masked_fill with -inf": lambda p, r: p.masked_fill(r(MASK), -math.inf),
    "where with 1": lambda p, r: torch.where(r(MASK), p, 1.0),
    "pad with 1": lambda p, r: F.pad(p, (1, 1), value=1),
    "addcmul of R": lambda p, r: torch.addcmul(p, r(torch.ones(3)), r(torch.ones(3))),
    "P * P": lambda p, r: p * p,
    "P @ P": lambda p, r: p @ p.T,
    "fill": lambda p, r: p.detach().fill_(1),
    "norm": lambda p, r: torch.linalg.vector_norm(p),
}

ACCEPTED = {
    "P * 0.5": lambda p, r: p * 0.5,
    "-P": lambda p, r: -p,
    "P / 4": lambda p, r: p / 4,
    "P * R": lambda p, r: p * r(torch.tensor([1.0, 2.0, 3.0], dtype=p.dtype)),
    "P[2:5]": lambda p, r: p[2:5],
    "index_select": lambda p, r: torch.index_select(p, 0, r(torch.tensor([3, 0]))),
    "pad with 0": lambda p, r: F.pad(p, (1, 2), value=0),
    "masked_fill with 0": lambda p, r: p.masked_fill(r(MASK), 0),
    "where with 0": lambda p, r: torch.where(r(MASK), p, 0.0),
    "linear": lambda p, r: F.linear(p, r(torch.arange(6, dtype=p.dtype).view(2, 3))),
    "sum of two": lambda p, r: sum([p, p * 2]),
    "zeros += P": lambda p, r: torch.zeros(6, 3, dtype=p.dtype).__iadd__(p),
    "lerp": lambda p, r: torch.lerp(p, p * 3, 0.25),
    "sum": lambda p, r: p.sum(0),
    "mean": lambda p, r: p.mean(1, keepdim=True),
    "to higher precision": lambda p, r: p.float().double() if p.dtype is torch.float16 else p.double(),
    "view and transpose": lambda p, r: p.view(2, -1).T,
    "P - P": lambda p, r: p - p * 3,
}


@pytest.mark.parametrize("use", REFUSED)
def test_what_is_not_linear_is_refused_and_is_right_behind_the_reduction(use):
    says(refusal(on_partial(REFUSED[use]), TWO), "tp", "P", "P -> R")

    def reduced_first(rank):
        total = spmd.all_reduce(partial((6, 3), "tp", TWO, rank), "tp", src=spmd.P, dst=spmd.R)
        return REFUSED[use](total, lambda value: whole(value, "tp"))

    alone = REFUSED[use](sample((6, 3), seed=0), lambda value: value)
    for found in judged(reduced_first, TWO):
        same = torch.equal(found.detach(), alone) if isinstance(found, torch.Tensor) else found == alone
        assert same


@pytest.mark.parametrize("use", ACCEPTED)
def test_what_is_linear_is_accepted_and_right(use):
    alone = sample((6, 3), seed=0).requires_grad_()
    expected = ACCEPTED[use](alone, lambda value: value)
    (gradient,) = torch.autograd.grad(expected.sum(), alone)

    def program(rank):
        p = partial((6, 3), "tp", TWO, rank)
        out = ACCEPTED[use](p, lambda value: whole(value, "tp"))
        spmd.assert_type(out, {"tp": spmd.P}).sum().backward()
        return out.detach(), p.grad

    outs, gradients = zip(*judged(program, TWO), strict=True)
    torch.testing.assert_close(denoted({"tp": spmd.P}, outs, TWO), expected.detach())
    torch.testing.assert_close(denoted({"tp": spmd.R}, gradients, TWO), gradient)


def test_it_can_be_looked_at():
    assert all("tensor" in shown for shown in judged(on_partial(lambda p, r: repr(p)), TWO))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_to_lower_precision_asks_for_the_dtype_of_the_collective(dtype):
    problem = refusal(on_partial(lambda p, r: p.to(dtype), dtype=torch.float32), TWO)
    says(problem, "tp", "P", "P -> R")
    assert str(dtype) in problem.what
    assert "dtype of the collective" in problem.fix


@settings(max_examples=15)
@given(
    axis=st.sampled_from(["tp", "cp", "dp"]),
    degree=st.sampled_from([2, 3]),
    use=st.sampled_from(sorted(set(REFUSED) - {"P + R", "P + a constant", "addcmul of R"} - {"masked_fill with -inf"})),
    shape=st.lists(st.integers(1, 3), min_size=2, max_size=2),
)
def test_whatever_the_axis_and_the_shape(axis, degree, use, shape):
    dims = on(axis, degree)
    shape = (shape[0], 3) if use == "where with 1" else tuple(shape)
    says(refusal(on_partial(REFUSED[use], axis, dims, shape), dims), axis, "P", "P -> R")


def test_unchecked_it_would_give_another_value():
    """The squares of the parts do not add up to the square of the sum."""
    value = sample((6, 3), seed=0)
    parts = [local({"tp": spmd.P}, value, TWO, rank) for rank in range(2)]
    assert torch.equal(parts[0] + parts[1], value)
    assert not torch.equal(parts[0].square() + parts[1].square(), value.square())

"""Shards are joined, not summed: `all_reduce` of S(0) as if it were P is refused, and `reduce_scatter` of S(1)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm import collectives
from meshwright.comm.threads import run_ranks
from tests.check.judged import judged, on, refusal, says
from tests.denotation import denoted, local, sample

TWO = on("tp", 2)
WHOLE = sample((4, 6), seed=1)


def reduced(kind, call, dst, axis="tp", dims=TWO, whole=WHOLE, src=spmd.P):
    """`call` on a tensor of `kind`, said to be `src`."""

    def program(rank):
        x = spmd.assert_type(local({axis: kind}, whole, dims, rank), {axis: kind})
        return call(x, axis, src=src, dst=dst)

    return program


CALLS = [
    (spmd.S(0), spmd.all_reduce, spmd.R, "all_gather"),
    (spmd.S(1), spmd.all_reduce, spmd.I, "all_gather"),
    (spmd.S(1), spmd.reduce_scatter, spmd.S(0), "all_to_all"),
    (spmd.S(0), spmd.reduce_scatter, spmd.S(1), "all_to_all"),
]


@pytest.mark.parametrize(("kind", "call", "dst", "instead"), CALLS)
def test_a_shard_is_not_reduced_as_if_it_were_a_sum(kind, call, dst, instead):
    problem = refusal(reduced(kind, call, dst), TWO)
    says(problem, "tp", f"{kind!r}, P", f"{kind!r} -> {dst!r}: {instead}(x, 'tp', src={kind!r}, dst={dst!r})")
    fixed = getattr(collectives, instead)
    parts = judged(reduced(kind, fixed, dst, src=kind), TWO)
    assert torch.equal(denoted({"tp": dst}, parts, TWO), WHOLE)


@pytest.mark.parametrize(("kind", "call", "dst", "instead"), CALLS)
def test_the_call_itself_says_so_where_the_source_is_said_to_be_a_shard(kind, call, dst, instead):
    problem = refusal(reduced(kind, call, dst, src=kind), TWO)
    assert problem.where.endswith("axis 'tp'")
    assert problem.fix == f"{instead}(x, 'tp', src={kind!r}, dst={dst!r})"


def test_unchecked_it_would_give_another_value():
    """The sum of the shards has the shape of one, and passes for the whole."""
    parts = run_ranks(TWO, reduced(spmd.S(0), spmd.all_reduce, spmd.R))
    assert parts[0].shape == (2, 6)
    assert torch.equal(parts[0], WHOLE[:2] + WHOLE[2:])


@settings(max_examples=15)
@given(
    axis=st.sampled_from(["tp", "cp", "dp"]),
    degree=st.sampled_from([2, 3]),
    dim=st.sampled_from([0, 1]),
    each=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_whatever_the_axis_and_the_shape(axis, degree, dim, each, seed):
    dims, kind, other = on(axis, degree), spmd.S(dim), spmd.S(1 - dim)
    whole = sample((each * degree, each * degree), seed)
    wrong = reduced(kind, spmd.all_reduce, spmd.R, axis, dims, whole)
    says(refusal(wrong, dims), axis, f"{kind!r}, P", f"{kind!r} -> R: all_gather")
    scattered = reduced(kind, spmd.reduce_scatter, other, axis, dims, whole)
    says(refusal(scattered, dims), axis, f"{kind!r}, P", f"{kind!r} -> {other!r}: all_to_all")


def test_an_uneven_shard_is_a_shard():
    kind = spmd.S(0, (3, 1))
    says(refusal(reduced(kind, spmd.all_reduce, spmd.R), TWO), "tp", f"{kind!r}, P", "-> R: all_gather")

"""Dims that are products of factors: flatten, split and merge of sharded dims denote what one device has."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.errors import SpmdTypeError
from meshwright.types.layout import SpmdLayout
from tests.check.oracle import GRID, Given, verdict
from tests.check.programs_alone import accepted, refused
from tests.check.programs_alone import given as typed
from tests.denotation import sample

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S

TOKENS = SpmdLayout({"dp": S(0), "tp": S(1)})
"""[batch@dp, length@tp, features]"""

PROGRAMS = {
    "flatten": lambda x: x.flatten(0, 1),
    "flatten and back": lambda x: x.flatten(0, 1).unflatten(0, x.shape[:2]),
    "view and back": lambda x: x.view(-1, x.shape[-1]).view(x.shape),
    "reshape and back": lambda x: x.reshape(x.shape[0] * x.shape[1], -1).reshape(x.shape),
    "pointwise on the product": lambda x: (x.flatten(0, 1) * 2).exp2(),
    "sum over the product": lambda x: x.flatten(0, 1).sum(0),
    "sum over the rest": lambda x: x.flatten(0, 1).sum(1),
    "transpose of the product": lambda x: x.flatten(0, 1).t(),
    "product with itself": lambda x: x.flatten(0, 1).t() @ x.flatten(0, 1),
    "two products": lambda x: x.flatten(0, 1) + x.reshape(-1, x.shape[2]),
    "all in one": lambda x: x.flatten(),
    "softmax of the rest": lambda x: x.flatten(0, 1).softmax(-1),
    "unsqueeze": lambda x: x.flatten(0, 1).unsqueeze(0),
    "split of the rest": lambda x: x.flatten(0, 1).split(2, 1),
    "stack": lambda x: torch.stack([x.flatten(0, 1), x.flatten(0, 1)]),
    "mask": lambda x: x.flatten(0, 1).masked_fill(x.flatten(0, 1) > 0, 0.0),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("shape", [(4, 4, 6), (2, 6, 4), (4, 2, 4), (2, 2, 4)])
def test_a_product_denotes_what_one_device_has(name, shape):
    found = verdict(PROGRAMS[name], [Given(sample(shape, seed=1), TOKENS)], GRID)
    assert not isinstance(found, SpmdTypeError), found


@pytest.mark.parametrize("heads", [2, 4, 6])
def test_heads_are_split_merged_and_moved(heads):
    def program(x):
        each = x.unflatten(-1, (-1, 3)).transpose(1, 2)
        return each.transpose(1, 2).flatten(2)

    layout = SpmdLayout({"dp": S(0), "tp": S(2)})
    assert verdict(program, [Given(sample((2, 3, heads * 3), seed=2), layout)], GRID) == layout


def test_heads_that_the_ranks_do_not_divide_are_refused_with_both_numbers():
    problem = refused(lambda: typed(S(2), 1, 2, 9).view(1, 2, -1, 6), Code.DOES_NOT_DIVIDE)
    assert "3 groups of 6" in problem.what
    assert "2 ranks" in problem.what


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.tuples(*[st.sampled_from((2, 4))] * 3),
    kinds=st.tuples(*[st.sampled_from((R, P, S(0), S(1), S(2)))] * 2),
    start=st.integers(0, 1),
    order=st.booleans(),
)
def test_flatten_and_unflatten_are_the_identity(lengths, kinds, start, order):
    types = dict(zip(("dp", "tp") if order else ("tp", "dp"), kinds, strict=True))

    def program(x):
        return x.flatten(start, start + 1).unflatten(start, x.shape[start : start + 2])

    layout = SpmdLayout(types)
    dims = [kind.dim for kind in kinds if isinstance(kind, S)]
    if any(lengths[dim] < 2 ** dims.count(dim) for dim in dims):
        return
    assert verdict(program, [Given(sample(lengths, seed=3), layout)], GRID) == layout


def test_it_is_shown_as_a_product():
    program = lambda: spmd.show(typed(S(1), 2, 3, 4, dp=S(0)).flatten(0, 1))  # noqa: E731
    assert accepted(program) == "f64[(4@dp, 6@tp), 4]"


COLLECTIVES = {
    "the outermost leaves": (lambda x: spmd.all_gather(x, "dp", src=S(0), dst=R), None),
    "an inner one does not": (lambda x: spmd.all_gather(x, "tp", src=S(0), dst=R), Code.OTHER_SHARDS),
    "another dim is cut": (lambda x: spmd.all_to_all(x, "dp", src=S(0), dst=S(1)), None),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_ranks_of_an_axis_are_laid_end_to_end_where_that_is_their_order(name):
    step, code = COLLECTIVES[name]

    def program():
        return step(typed(S(1), 2, 4, 4, dp=S(0)).flatten(0, 1))

    if code is None:
        accepted(program)
    else:
        refused(program, code)


def test_a_dim_in_factors_is_not_stated_to_be_cut_end_to_end():
    refused(lambda: spmd.assert_type(typed(S(1), 2, 4, 4, dp=S(0)).flatten(0, 1), {"tp": S(0)}), Code.OTHER_SHARDS)
    assert accepted(
        lambda: spmd.assert_type(typed(S(1), 1, 4, 4, dp=S(0)).flatten(0, 1), {"dp": S(0), "tp": S(0)})
    ) == {"dp": S(0), "tp": S(0)}

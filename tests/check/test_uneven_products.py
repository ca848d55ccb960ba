"""Dims that are cut unevenly, as factors of products: right on one device, and told in positions of the dim."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.cases.agreement import Held, agrees
from tests.check.judged import on, refusal
from tests.denotation import sample

R, P, S = spmd.R, spmd.P, spmd.S
WIDTH = 6


def alone():
    return spmd.current_mesh() is None


def scaled(sizes, by):
    return S(0, tuple(size * by for size in sizes))


def gathered(x, sizes):
    flat = x.flatten()
    return flat if alone() else spmd.all_gather(flat, "tp", src=scaled(sizes, WIDTH), dst=R)


def cut_again(x, sizes):
    whole = gathered(x, sizes)
    return whole if alone() else spmd.convert(whole, "tp", src=R, dst=scaled(sizes[::-1], WIDTH))


def stated(x, sizes):
    flat = x.flatten()
    return flat if alone() else spmd.assert_type(flat, {"tp": scaled(sizes, WIDTH)})


PROGRAMS = {
    "gathered": (gathered, lambda sizes: R),
    "gathered and cut": (cut_again, lambda sizes: scaled(sizes[::-1], WIDTH)),
    "stated": (stated, lambda sizes: scaled(sizes, WIDTH)),
    "taken apart": (lambda x, sizes: x.flatten().view(-1, WIDTH) + x, lambda sizes: S(0, sizes)),
    "unflattened": (lambda x, sizes: x.flatten().unflatten(0, (-1, WIDTH)) + x, lambda sizes: S(0, sizes)),
    "in smaller groups": (lambda x, sizes: x.flatten().reshape(-1, 2), lambda sizes: scaled(sizes, 3)),
    "split and merged": (lambda x, sizes: x.view(-1, 3, 2).flatten(0, 1), lambda sizes: scaled(sizes, 3)),
    "split and turned": (lambda x, sizes: x.flatten().view(-1, 3, 2).transpose(1, 2), lambda sizes: S(0, sizes)),
    "summed": (lambda x, sizes: x.flatten().sum(), lambda sizes: P),
    "in its own shape": (lambda x, sizes: x.flatten().view(x.shape) * x, lambda sizes: S(0, sizes)),
}


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(PROGRAMS)), sizes=st.lists(st.integers(1, 4), min_size=2, max_size=5).map(tuple))
def test_it_is_right_on_one_device(name, sizes):
    program, kind = PROGRAMS[name]
    x = Held(sample((sum(sizes), WIDTH), 1), {"tp": S(0, sizes)})
    found = agrees(lambda x: program(x, sizes) * 2.0, on("tp", len(sizes)), x=x)
    assert found["tp"] is kind(sizes)


OTHERS = [S(0, (3, 2)), S(0), S(0, (12, 18))]


@pytest.mark.parametrize("kind", OTHERS, ids=repr)
def test_other_lengths_of_the_product_are_refused(kind):
    x = Held(sample((5, WIDTH), 1), {"tp": S(0, (3, 2))})
    dims = on("tp", 2)
    for call in (
        lambda flat: spmd.assert_type(flat, {"tp": kind}),
        lambda flat: spmd.all_gather(flat, "tp", src=kind, dst=R),
    ):
        problem = refusal(lambda rank, call=call: call(x.on_rank(dims, rank).flatten()), dims)
        assert problem.code is Code.OTHER_TYPE
        assert "S(0, (18, 12))" in problem.what


def test_groups_that_no_rank_holds_are_refused():
    x = Held(sample((5, WIDTH), 1), {"tp": S(0, (3, 2))})
    problem = refusal(lambda rank: torch.flatten(x.on_rank(on("tp", 2), rank)).view(-1, 4), on("tp", 2))
    assert problem.code in (Code.DOES_NOT_DIVIDE, Code.SHAPE)

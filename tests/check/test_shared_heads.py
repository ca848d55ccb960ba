"""Query heads that share a key head may be on several ranks, each of which has that key head."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

from meshwright.spmd import R, S, SpmdLayout
from tests.oracle.drawn import SQUARE
from tests.oracle.judge import Case, Verdict, judged
from tests.oracle.sample import mask, sample

Q, KEYS, SEEN = (2, 4, 6, 4), (2, 2, 6, 4), mask(2, 1, 6, 6)


def attend(q, k, v, seen=None):
    return F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)


def verdict(query, keys, *seen):
    operands = sample("scaled_dot_product_attention", attend, Q, KEYS, KEYS, *([SEEN] if seen else []))
    layouts = tuple(SpmdLayout(each) for each in (query, keys, keys, *seen))
    return judged(Case(operands, layouts, (True, True, True, False)[: len(layouts)], SQUARE))


@pytest.mark.parametrize(("outer", "inner"), [("dp", "tp"), ("tp", "dp")])
def test_groups_over_one_axis_and_the_heads_of_a_group_over_another(outer, inner):
    query, keys = {outer: S(1), inner: S(1)}, {outer: S(1), inner: R}
    assert verdict(query, keys) is Verdict.ACCEPTED
    assert verdict(query, keys, {"dp": R, "tp": R}) is Verdict.ACCEPTED


@pytest.mark.parametrize(("outer", "inner"), [("dp", "tp"), ("tp", "dp")])
def test_the_other_way_round_a_rank_has_the_keys_of_other_queries(outer, inner):
    assert verdict({outer: S(1), inner: S(1)}, {outer: R, inner: S(1)}) is Verdict.REFUSED

"""Tokens R on tp meet expert weights S on tp inside a region that declares no gradient layout: there is no default.

R meets S, so the gradient of the tokens is P: each rank's own part. Both ways to declare a region say so.
"""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.core.sharding import LocalMapConfig
from meshwright.models.layouts import activation
from tests.audit.expert_recipes import with_region
from tests.audit.recipes import judged as checked
from tests.cases.agreement import Held, agrees
from tests.cases.mixtures import CHOICE, CUT, EXPERTS, mixtures, planted
from tests.check.judged import on, refusal
from tests.core.toys import calling
from tests.denotation import sample
from tests.parity.harness import assert_same, global_batch, on_threads, one_device
from tests.ranks import refused

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S

ROWS, COLUMNS = S(0), S(1)


def experts(tokens, weight):
    return F.linear(tokens, weight).relu()


def region(axis, grads, tokens=R, weight=ROWS, out=COLUMNS):
    return spmd.local_map(in_types=({axis: tokens}, {axis: weight}), out_types={axis: out}, in_grad_types=grads)


def operands(axis, degree, rows, width, seed):
    tokens = Held(sample((rows, width), seed), {axis: R})
    return {"tokens": tokens, "weight": Held(sample((2 * degree, width), seed + 1), {axis: S(0)})}


@settings(max_examples=8)
@given(
    axis=st.sampled_from(["tp", "cp", "dp"]),
    degree=st.sampled_from([2, 3]),
    rows=st.integers(1, 3),
    width=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_it_is_refused_and_the_gradient_that_it_names_is_right(axis, degree, rows, width, seed):
    dims, given_ = on(axis, degree), operands(axis, degree, rows, width, seed)
    bare = region(axis, None)(experts)
    problem = refusal(lambda rank: bare(*(each.on_rank(dims, rank) for each in given_.values())), dims)
    assert f"R on axis {axis!r}" in problem.what
    assert "R meets S(0): the gradient is P" in problem.why
    assert f"in_grad_types with {{{axis!r}: P}} for argument 0" in problem.fix
    right = region(axis, ({axis: P}, {axis: S(0)}))(experts)
    assert agrees(lambda tokens, weight: right(tokens, weight), dims, **given_) == {axis: S(1)}


@pytest.mark.parametrize("wrong", [R, I, V, S(0)])
def test_another_gradient_is_refused_and_the_printed_one_is_right(wrong):
    dims, given_ = on("tp", 2), operands("tp", 2, 3, 2, 1)
    stated = region("tp", ({"tp": wrong}, None))(experts)
    problem = refusal(lambda rank: stated(*(each.on_rank(dims, rank) for each in given_.values())), dims)
    assert "the gradient of R is P" in problem.why
    assert "in_grad_types with P on 'tp'" in problem.fix


def test_an_expert_weight_that_is_a_list_says_the_same():
    dims, given_ = on("tp", 2), operands("tp", 2, 3, 2, 1)
    bare = region("tp", None, weight=V, out=V)(experts)
    problem = refusal(lambda rank: bare(*(each.on_rank(dims, rank) for each in given_.values())), dims)
    assert "R meets V: the gradient is P" in problem.why


def test_tokens_without_a_gradient_need_none_declared():
    dims, given_ = on("tp", 2), operands("tp", 2, 3, 2, 1)
    given_["tokens"] = Held(given_["tokens"].whole, {"tp": R}, wants=False)
    bare = region("tp", None)(experts)
    assert agrees(lambda tokens, weight: bare(tokens, weight), dims, **given_) == {"tp": S(1)}


def declared(gradients, axis="tp"):
    """A module whose forward is a region: tokens R, a result that is split."""
    rest = {other: R for other in ("dp", "cp", "tp") if other != axis}
    return calling(
        lambda self, tokens: tokens,
        in_src_shardings={"tokens": {**rest, axis: R}},
        in_dst_shardings={"tokens": {**rest, axis: R}},
        out_src_shardings={**rest, axis: S(1)},
        out_dst_shardings={**rest, axis: S(1)},
        local_map=LocalMapConfig(in_grad_shardings=gradients),
    )


@pytest.mark.parametrize("axis", ["tp", "cp", "dp"])
def test_a_module_says_so_when_it_is_built(axis):
    (problem,) = refused(declared({}, axis), on(axis, 2))
    assert problem.what == f"no gradient layout for 'tokens', which enters as {{{axis}:R}}"
    assert "where R meets S inside a region the gradient is P" in problem.why
    assert problem.fix == f"'tokens': {{{axis}:P}}, or None if it has no gradient"
    fixed = {"tokens": {other: P if other == axis else R.dual for other in ("dp", "cp", "tp")}}
    assert refused(declared(fixed, axis), on(axis, 2)) == ()


@settings(max_examples=6)
@given(config=mixtures(), place=st.sampled_from([EXPERTS, CHOICE]))
def test_the_regions_of_a_mixture_have_no_default_either(config, place):
    bare = planted(config, with_region(place, in_grad_shardings={}))
    names = ["chosen", "weights", "x"] if place == EXPERTS else ["logits"]
    problems = checked(bare).problems
    field = f"{place}.sharding_config.local_map.in_grad_shardings"
    assert [problem.where for problem in problems] == [f"{field}[{name!r}]" for name in names]
    assert all("where R meets S inside a region the gradient is P" in problem.why for problem in problems)
    whole = config.parallel.ep == 1 and config.parallel.tp > 1  # tokens are R on tp, and meet a part of each expert
    assert all(("tp:P" in problem.fix) == whole for problem in problems)


@settings(max_examples=3)
@given(config=mixtures(CUT), seed=st.integers(0, 99))
def test_tokens_whose_gradient_is_declared_p_have_that_of_one_device(config, seed):
    p = activation(P)
    declared = planted(config, with_region(EXPERTS, in_grad_shardings={"x": p, "weights": p, "chosen": None}))
    assert checked(declared).right
    batches = [global_batch(config, seed)]
    assert_same(on_threads(declared, batches), one_device(config, batches))

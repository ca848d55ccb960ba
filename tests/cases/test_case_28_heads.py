"""Features that are split over ranks are viewed as heads, merged back, and flattened with other split dims.

(B, L, H) S(2)@tp as (B, L, heads, head_dim): accepted where the ranks hold whole heads; 3 heads on tp 2 are refused,
with both numbers. (B@dp, L@cp) flattened and unflattened is the identity.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from tests.cases.agreement import Held, agrees
from tests.check.judged import on, refusal, says
from tests.denotation import sample

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S

SPLITS = {
    "view": lambda x, d: x.view(*x.shape[:2], -1, d),
    "view, one by one": lambda x, d: x.view(x.shape[0], x.shape[1], -1, d),
    "view of a tuple": lambda x, d: x.view((*x.shape[:2], -1, d)),
    "reshape": lambda x, d: x.reshape(*x.shape[:-1], -1, d),
    "unflatten": lambda x, d: x.unflatten(-1, (-1, d)),
    "unflatten, counted": lambda x, d: x.unflatten(2, (x.shape[2] // d, d)),
}
MERGES = {
    "flatten": lambda y: y.flatten(2),
    "flatten, by name": lambda y: y.flatten(start_dim=-2, end_dim=-1),
    "view": lambda y: y.view(*y.shape[:2], -1),
    "reshape": lambda y: y.reshape(y.shape[0], y.shape[1], -1),
    "reshape, counted": lambda y: y.reshape(*y.shape[:2], y.shape[2] * y.shape[3]),
}


@settings(max_examples=25)
@given(
    axis=st.sampled_from(["tp", "cp", "dp"]),
    degree=st.sampled_from([1, 2, 3]),
    batch=st.integers(1, 2),
    length=st.integers(1, 3),
    heads=st.integers(2, 3),
    head_dim=st.integers(2, 4),
    split=st.sampled_from(sorted(SPLITS)),
    merge=st.sampled_from(sorted(MERGES)),
)
def test_whole_heads_of_each_rank(axis, degree, batch, length, heads, head_dim, split, merge):
    x = Held(sample((batch, length, degree * heads * head_dim), 1), {axis: S(2)})

    def as_heads(x):
        return SPLITS[split](x, head_dim) * 2.0

    def there_and_back(x):
        return MERGES[merge](as_heads(x).transpose(1, 2).transpose(1, 2).contiguous())

    assert agrees(as_heads, on(axis, degree), x=x) == {axis: S(2)}
    assert agrees(there_and_back, on(axis, degree), x=x) == {axis: S(2)}


@pytest.mark.parametrize("split", sorted(set(SPLITS) - {"unflatten, counted"}))
@pytest.mark.parametrize(("heads", "tp", "head_dim"), [(3, 2, 4), (3, 2, 2), (5, 4, 4), (1, 2, 6)])
def test_a_cut_inside_a_head_is_refused_with_both_numbers(split, heads, tp, head_dim):
    x = Held(sample((1, 2, heads * head_dim), 1), {"tp": S(2)})
    problem = refusal(lambda rank: SPLITS[split](x.on_rank(on("tp", tp), rank), head_dim), on("tp", tp))
    says(problem, "tp", "")
    assert f"{heads} groups of {head_dim}" in problem.what
    assert f"{tp} ranks of axis 'tp'" in problem.what
    fixed = Held(sample((1, 2, tp * head_dim), 1), {"tp": S(2)})
    assert agrees(lambda x: SPLITS[split](x, head_dim), on("tp", tp), x=fixed) == {"tp": S(2)}


DIMS = ParallelismDims(dp_shard=2, cp=2)
TOKENS = {"dp": S(0), "cp": S(1)}

PAIRS = {
    "flatten": lambda x: x.flatten(0, 1).unflatten(0, x.shape[:2]),
    "view": lambda x: x.view(-1, x.shape[-1]).view(x.shape),
    "reshape": lambda x: x.reshape(x.shape[0] * x.shape[1], -1).reshape(*x.shape[:2], -1),
    "with work between": lambda x: (x.flatten(0, 1) * 3.0).unflatten(0, x.shape[:2]),
    "all dims": lambda x: x.flatten().unflatten(0, x.shape),
    "twice": lambda x: x.flatten(0, 1).flatten(0, 1).view(x.shape),
}


@settings(max_examples=20)
@given(
    pair=st.sampled_from(sorted(PAIRS)),
    axes=st.permutations(["dp", "cp", "tp"]),
    degrees=st.tuples(st.sampled_from([2, 3]), st.sampled_from([1, 2])),
    batch=st.integers(2, 3),
    length=st.integers(2, 3),
    width=st.integers(1, 3),
)
def test_flatten_and_unflatten_are_the_identity(pair, axes, degrees, batch, length, width):
    first, second, _ = axes
    named = {"dp_shard" if axis == "dp" else axis: n for axis, n in zip((first, second), degrees, strict=True)}
    layout = {first: S(0), second: S(1)}
    x = Held(sample((batch * degrees[0], length * degrees[1], width), 1), layout)
    assert agrees(PAIRS[pair], ParallelismDims(**named), x=x) == layout


@pytest.mark.parametrize("rest", [R, P, I])
def test_a_layer_on_flat_tokens(rest):
    dims = ParallelismDims(dp_shard=2, cp=2, tp=2)
    layout = {**TOKENS, "tp": rest}
    x = Held(sample((4, 4, 3), 1), layout)
    weight = Held(sample((2, 3), 2), {"dp": R, "cp": R, "tp": I if rest is I else R})

    def program(x, weight):
        return (x.flatten(0, 1) @ weight.t()).unflatten(0, x.shape[:2])

    assert agrees(program, dims, x=x, weight=weight) == layout
    assert agrees(lambda x, weight: (x.flatten(0, 1) @ weight.t()).sum(0), dims, x=x, weight=weight) == {
        "dp": P,
        "cp": P,
        "tp": rest,
    }

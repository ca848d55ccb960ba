"""`flex_attention` is judged before torch compiles it: as attention, and by what its author's functions ask for."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from meshwright.codes import Code
from meshwright.spmd import P, R, S, SpmdTypeError, V, assert_type, layout_of, mesh, set_current_mesh, typecheck

DOCUMENTS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def attended(kind, of=None, keys=None, **how):
    """The layout of what comes out, of [2, 4, 8, 4] on a rank; `of`: a tensor that score_mod or mask_mod looks into."""
    with set_current_mesh(mesh(tp=2)), typecheck():
        q, *kv = (assert_type(torch.randn(2, 4, 8, 4), {"tp": each}) for each in (kind, *[keys or kind] * 2))
        if of is not None:
            x, held = of
            looked_into = assert_type(x.clone(), {"tp": held})
            how = {name: make(looked_into) for name, make in how.items()}
        if "mask_mod" in how:
            how["block_mask"] = create_block_mask(how.pop("mask_mod"), 2, 4, 8, 8, device="cpu", BLOCK_SIZE=4)
        out = flex_attention(q, *kv, **how)
        found = [dict(layout_of(x)) for x in (out if isinstance(out, tuple) else (out,))]
        return found[0] if len(found) == 1 else found


def refused(*args, **how):
    with pytest.raises(SpmdTypeError) as caught:
        attended(*args, **how)
    (problem,) = caught.value.problems
    return problem


def causal(b, h, i, j):
    return i >= j


@pytest.mark.parametrize("kind", [R, S(0), S(1), V])
@pytest.mark.parametrize("mask_mod", [causal, lambda b, h, i, j: (i - j).abs() < 3])
def test_masks_of_queries_and_keys_go_with_batch_and_heads_that_are_cut(kind, mask_mod):
    assert attended(kind, mask_mod=mask_mod) == {"tp": kind}


def test_logarithms_of_sums_are_cut_like_the_output():
    assert attended(S(1), mask_mod=causal, return_lse=True) == [{"tp": S(1)}, {"tp": S(1)}]


def test_a_part_of_a_sum_is_refused():
    assert refused(P).code is Code.NOT_LINEAR


def test_keys_are_needed_whole():
    assert "key is S(2)" in refused(R, keys=S(2)).what


@pytest.mark.parametrize(
    ("kind", "mask_mod"),
    [
        (S(0), lambda b, h, i, j: (i >= j) | (b == 0)),
        (S(1), lambda b, h, i, j: (i - j).abs() <= h),
        (S(1), lambda b, h, i, j: (i - j).abs() <= h + 4),
    ],
)
def test_places_along_a_dim_that_is_cut_are_a_ranks_own(kind, mask_mod):
    problem = refused(kind, mask_mod=mask_mod)
    assert "what mask_mod says is V: it asks for their places" in problem.what
    assert attended(R, mask_mod=mask_mod) == {"tp": R}


def test_causal_by_places_wants_all_queries():
    assert "it asks for their places" in refused(S(2), keys=R, mask_mod=causal).what
    assert attended(S(2), keys=R) == {"tp": S(2)}


def test_scores_are_changed_by_what_all_ranks_know():
    assert attended(S(1), score_mod=lambda s, b, h, i, j: torch.tanh(s / 2) + (i - j)) == {"tp": S(1)}
    assert attended(R, score_mod=lambda s, b, h, i, j: s * (h + 1)) == {"tp": R}
    with pytest.raises(SpmdTypeError):
        attended(S(1), score_mod=lambda s, b, h, i, j: s * (h + 1))


def test_tensors_that_the_functions_look_into_are_judged():
    documents = lambda d: lambda b, h, i, j: (d[i] == d[j]) & (i >= j)  # noqa: E731
    assert attended(S(1), of=(DOCUMENTS, R), mask_mod=documents) == {"tp": S(1)}
    assert "looks into a tensor that is V" in refused(S(1), of=(DOCUMENTS, V), mask_mod=documents).what
    bias = lambda w: lambda s, b, h, i, j: s + w[i, j]  # noqa: E731
    assert attended(S(1), of=(torch.randn(8, 8), R), score_mod=bias) == {"tp": S(1)}
    with pytest.raises(SpmdTypeError):
        attended(S(1), of=(torch.randn(8, 8), P), score_mod=bias)


def test_blocks_are_those_of_their_function():
    nothing = torch.zeros(1, 1, 2, dtype=torch.int32), torch.zeros(1, 1, 2, 2, dtype=torch.int32)
    blocks = BlockMask.from_kv_blocks(*nothing, BLOCK_SIZE=4, mask_mod=causal, seq_lengths=(8, 8))
    assert "are not those of its mask_mod" in refused(S(1), block_mask=blocks).what
    assert attended(S(1), block_mask=create_block_mask(causal, None, None, 8, 8, device="cpu")) == {"tp": S(1)}

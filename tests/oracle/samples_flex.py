"""Samples of flex_attention: on a CPU it has no backward, so gradients are those of attention, whose rule it has."""

from __future__ import annotations

import warnings

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.oracle.sample import Sample, real, sample

Q = real(2, 4, 8, 2, wants=False)
BIAS = real(8, 8, wants=False)


def flex(q, k, v, mask_mod=None, **how):
    """The call, with blocks of a function of places."""
    with warnings.catch_warnings(), torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=9999):
        warnings.simplefilter("ignore")
        if mask_mod is not None:
            lengths = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
            how["block_mask"] = create_block_mask(mask_mod, *lengths, device="cpu", BLOCK_SIZE=4)
        return flex_attention(q, k, v, **how)


def causal(b, h, i, j):
    return i >= j


def near_in_own_heads(b, h, i, j):
    return (i - j).abs() <= h


def of_batch(b, h, i, j):
    return (i >= j) | (b == 0)


def capped(score, b, h, i, j):
    return torch.tanh(score) + (i - j)


def sloped(score, b, h, i, j):
    return score * (h + 1)


FLEX: list[Sample] = [
    sample("flex_attention", flex, Q, Q, Q),
    sample("flex_attention", lambda q, k, v: flex(q, k, v, enable_gqa=True), Q, *[real(2, 2, 8, 2, wants=False)] * 2),
    *[sample("flex_attention", lambda q, k, v, mod=mod: flex(q, k, v, mod), Q, Q, Q) for mod in (causal, of_batch)],
    sample("flex_attention", lambda q, k, v: flex(q, k, v, near_in_own_heads, return_lse=True), Q, Q, Q, mixed=False),
    *[
        sample("flex_attention", lambda q, k, v, mod=mod: flex(q, k, v, score_mod=mod), Q, Q, Q)
        for mod in (capped, sloped)
    ],
    sample(
        "flex_attention", lambda q, k, v, w: flex(q, k, v, score_mod=lambda s, b, h, i, j: s + w[i, j]), Q, Q, Q, BIAS
    ),
]

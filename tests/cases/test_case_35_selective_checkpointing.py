"""The operations that the policy of selective activation checkpointing sees are the same with checking on and off."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import meshwright.spmd as spmd
from meshwright.check import typecheck
from meshwright.comm.threads import run_ranks
from tests.check.judged import on
from tests.denotation import local, sample

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S


def feed_forward(x, w):
    up = spmd.redistribute(x, "tp", src=I, dst=R) @ w.t()
    return spmd.all_reduce(F.silu(up) @ w, "tp", src=P, dst=I)


def normed(x, w):
    return feed_forward(F.rms_norm(x, x.shape[-1:]), w)


def attention(x, w):
    q = (spmd.redistribute(x, "tp", src=I, dst=R) @ w.t()).unflatten(-1, (-1, 2)).transpose(0, 1)
    out = F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(0, 1).flatten(1)
    return spmd.all_reduce(out @ w, "tp", src=P, dst=I)


def views(x, w):
    """Retags, views, masks and writes in place."""
    y = spmd.redistribute(x, "tp", src=I, dst=R).flatten().unflatten(0, x.shape) * 2.0
    part = spmd.convert(y, "tp", src=R, dst=S(0))
    whole = spmd.all_gather(part.masked_fill(part > 0, 0.0), "tp", src=S(0), dst=R)
    return spmd.all_reduce(spmd.convert(whole, "tp", src=R, dst=P), "tp", src=P, dst=I)


BLOCKS = [feed_forward, normed, attention, views]


def seen(block, whole, weight, dims, keep, checked):
    """Per rank: each (op, recomputing) that the policy was asked, and the gradient of x."""

    def program(rank):
        asked = []

        def policy(ctx, op, *args, **kwargs):
            asked.append((str(op), ctx.is_recompute))
            return (
                CheckpointPolicy.MUST_SAVE
                if any(name in str(op) for name in keep)
                else CheckpointPolicy.PREFER_RECOMPUTE
            )

        x = spmd.assert_type(whole.clone().requires_grad_(), {"tp": I})
        w = spmd.assert_type(local({"tp": S(0)}, weight, dims, rank).requires_grad_(), {"tp": S(0)})
        out = checkpoint(
            block, x, w, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy)
        )
        out.square().sum().backward()
        return asked, x.grad

    if not checked:
        return run_ranks(dims, program)

    def judged(rank):
        with typecheck():
            return program(rank)

    return run_ranks(dims, judged)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("keep", [(), ("mm",), ("attention", "silu")], ids=str)
@settings(max_examples=3)
@given(degree=st.sampled_from([1, 2]), rows=st.sampled_from([2, 4]), seed=st.integers(0, 99))
def test_they_are_the_same(block, keep, degree, rows, seed):
    dims, whole, weight = on("tp", degree), sample((rows, 3), seed), sample((4 * degree, 3), seed + 1)
    off, checked = (seen(block, whole, weight, dims, keep, checked) for checked in (False, True))
    for (ops, grad), (ops_checked, grad_checked) in zip(off, checked, strict=True):
        assert ops
        assert ops_checked == ops
        assert torch.equal(grad_checked, grad)

"""Samples of contractions and attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.oracle.sample import Sample, ends, mask, places, real, sample

X, Z = (12, 12), (4, 12, 12)


def single(*shape):
    return real(*shape, dtype=torch.float32)


def flash(q, k, v):
    """torch divides the numbers of heads, and dies where one is 0: that they fit is asked for first."""
    torch.broadcast_tensors(q.sum((2, 3)), k.sum((2, 3)))
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)


def heads(q, kv, w_in, b_in, w_out, b_out):
    more = (None, None, False, 0.0, w_out, b_out)
    return F.multi_head_attention_forward(q, kv, kv, q.shape[-1], 2, w_in, b_in, *more)


def causal(x, w_in, w_out):
    mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).triu(1)
    more = (None, None, False, 0.0, w_out, None, True, None, False, mask)
    return F.multi_head_attention_forward(x, x, x, x.shape[-1], 2, w_in, None, *more)[0]


MATMUL: list[Sample] = [
    sample("matmul", torch.matmul, X, X),
    sample("matmul", torch.matmul, Z, Z),
    sample("matmul", torch.matmul, Z, X),
    sample("matmul", torch.matmul, X, (12,)),
    sample("matmul", torch.matmul, (12,), Z),
    sample("rmatmul", torch.Tensor.__rmatmul__, X, X),
    sample("mm", torch.mm, X, X),
    sample("bmm", torch.bmm, Z, Z),
    sample("mv", torch.mv, X, (12,)),
    sample("dot", torch.dot, (12,), (12,)),
    sample("vdot", torch.vdot, (12,), (12,)),
    sample("inner", torch.inner, X, X),
    sample("inner", torch.inner, Z, (12,)),
    sample("linear", F.linear, Z, X),
    sample("linear", F.linear, X, X, (12,)),
    sample("linear", F.linear, X, (12,)),
    sample("bilinear", F.bilinear, (4, 12), (4, 12), (12, 12, 12)),
    sample("bilinear", F.bilinear, (4, 12), (4, 12), (12, 12, 12), (12,)),
    sample("addmm", torch.addmm, X, X, X),
    sample("addmm", lambda b, x, y: torch.addmm(b, x, y, beta=2, alpha=3), (12,), X, X),
    sample("addmv", torch.addmv, (12,), X, (12,)),
    sample("addr", torch.addr, X, (12,), (12,)),
    sample("baddbmm", torch.baddbmm, Z, Z, Z),
    sample("addbmm", torch.addbmm, X, Z, Z),
    sample("outer", torch.outer, (12,), (12,)),
    sample("ger", torch.ger, (12,), (12,)),
    sample("kron", torch.kron, (12, 4), (4, 12)),
    sample("tensordot", lambda x, y: torch.tensordot(x, y, dims=2), (4, 12, 6), (12, 6, 4)),
    sample("tensordot", lambda x, y: torch.tensordot(x, y, dims=([0], [1])), X, X),
    sample("chain_matmul", torch.chain_matmul, X, X, X),
    sample("multi_dot", lambda x, y, z: torch.linalg.multi_dot([x, y, z]), X, X, X),
    sample("multi_dot", lambda x, y: torch.linalg.multi_dot([x, y]), (12,), X),
    sample("einsum", lambda x, y: torch.einsum("bik,bkj->bij", x, y), Z, Z),
    sample("einsum", lambda x, y: torch.einsum("ij,kj", x, y), X, X),
    sample("einsum", lambda x, y: torch.einsum("...ij,...kj->...ik", x, y), Z, X),
    sample("einsum", lambda x, y: torch.einsum("...d,d->...", x, y), Z, (12,)),
    sample("einsum", lambda x, y, z: torch.einsum("ij,jk,k->i", x, y, z), X, X, (12,)),
    sample("einsum", lambda x: torch.einsum("ij->ji", x), X),
    sample("cross", lambda x, y: torch.linalg.cross(x, y), (12, 3), (12, 3)),
    sample("linalg_cross", lambda x, y: torch.cross(x, y, dim=0), (3, 12), (3, 12)),
    sample("cdist", torch.cdist, (4, 12, 6), (4, 12, 6)),
    sample("pairwise_distance", F.pairwise_distance, X, X),
    sample("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, dim=0), X, X),
    sample("embedding", F.embedding, places(12, 4, 6), X),
    sample("embedding", torch.embedding, X, places(12, 4, 6)),
    sample("embedding_bag", F.embedding_bag, places(12, 4, 6), X),
    sample("embedding_bag", lambda i, w: F.embedding_bag(i, w, mode="sum"), places(12, 4, 6), X),
    sample("embedding_bag", lambda i, w: F.embedding_bag(i, w, mode="max"), places(12, 4, 6), X),
    sample(
        "embedding_bag",
        lambda i, w, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s),
        places(12, 4, 6),
        X,
        (4, 6),
    ),
    sample("grouped_mm", lambda x, w, e: F.grouped_mm(x, w, offs=e), single(12, 16), single(4, 16, 48), ends(4, 12)),
    sample("grouped_mm", lambda x, w, e: F.grouped_mm(x, w, offs=e), single(12, 12), single(12, 8), ends(2, 12)),
    sample("_grouped_mm", lambda x, w: F.grouped_mm(x, w), single(2, 16, 16), single(2, 16, 48)),
    sample(
        "scaled_dot_product_attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (2, 6, 4, 4),
        (2, 6, 4, 4),
        (2, 6, 4, 4),
    ),
    sample(
        "scaled_dot_product_attention",
        F.scaled_dot_product_attention,
        (6, 4, 6),
        (6, 4, 6),
        (6, 4, 6),
        real(4, 4, wants=False),
    ),
    sample(
        "scaled_dot_product_attention",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m | torch.eye(4, dtype=torch.bool)),
        (6, 4, 6),
        (6, 4, 6),
        (6, 4, 6),
        mask(6, 4, 4),
    ),
    sample("multi_head_attention_forward", heads, (6, 4, 4), (6, 4, 4), (12, 4), (12,), (4, 4), (4,)),
    sample("multi_head_attention_forward", causal, (6, 4, 4), (12, 4), (4, 4), mixed=False),
    sample(
        "_scaled_dot_product_flash_attention_for_cpu",
        flash,
        (2, 6, 4, 4),
        (2, 6, 4, 4),
        (2, 6, 4, 4),
        mixed=False,
    ),
    sample(
        "_scaled_dot_product_attention_math",
        lambda q, k, v: torch._scaled_dot_product_attention_math(q, k, v, None),
        (2, 6, 4, 4),
        (2, 6, 4, 4),
        (2, 6, 4, 4),
        mixed=False,
    ),
    sample(
        "scaled_dot_product_attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (2, 12, 4, 4),
        (2, 6, 4, 4),
        (2, 6, 4, 4),
    ),
]

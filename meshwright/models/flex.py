"""Attention that skips what a mask hides, by `torch.nn.attention.flex_attention`: the way on CUDA.

On a CPU it has a forward and no backward, and is for tests: its compiled form does not build there for every shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK: Final = 128
"""Queries, and keys, of a block: it is computed where some query of it sees some key of it."""


def flex(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """q[B, heads, queries, d], k, v[B, kv_heads, keys, d], mask[B, 1, queries, keys] -> [B, heads, queries, d], as
    `scaled_dot_product_attention` with that mask."""
    shared = q.shape[1] != k.shape[1]
    nested = torch.compiler.is_compiling()  # what is compiled with the block around it is not compiled again
    run: Callable[..., Any] = flex_attention
    if q.is_cuda and not nested:
        run = _compiled()
    out: Tensor = run(q, k, v, block_mask=blocks(mask), scale=scale, enable_gqa=shared)
    return out


def blocks(mask: Tensor) -> BlockMask:
    """Of mask[B, 1, queries, keys] the blocks that are computed: those that are seen whole, and those in part."""
    queries, keys = mask.shape[-2:]
    whole = F.pad(mask, (0, -keys % BLOCK, 0, -queries % BLOCK))
    seen = whole.unflatten(-2, (-1, BLOCK)).unflatten(-1, (-1, BLOCK)).sum((-3, -1))
    full = seen == BLOCK * BLOCK
    partial = (seen > 0) & ~full

    def sees(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask[b, 0, query, key]

    return BlockMask.from_kv_blocks(
        *_listed(partial), *_listed(full), BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(queries, keys)
    )


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """chosen[..., blocks] -> how many, and which, those first."""
    order = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)


@cache
def _compiled() -> Callable[..., Any]:
    """Uncompiled it computes every product, seen or not."""
    compiled: Callable[..., Any] = torch.compile(flex_attention)
    return compiled

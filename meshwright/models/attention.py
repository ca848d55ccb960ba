"""Causal self-attention with grouped key/value heads. Ainslie et al., arXiv:2305.13245."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch.nn.functional as F
from torch import Tensor

from meshwright.comm.grid import ParallelismDims
from meshwright.core.module import Module
from meshwright.errors import Problem, either
from meshwright.models.flex import flex
from meshwright.models.layers import Linear, RMSNorm
from meshwright.models.rope import rotate


class Visible(Module):
    """documents, positions[B, queries], key_documents, key_positions[B, keys] -> bool [B, 1, queries, keys]: a query
    sees the keys of its own document up to its own position in it.

    Where the sequence is split over ranks, the queries are this rank's and the keys everyone's, in any order.
    """

    def forward(self, documents: Tensor, positions: Tensor, key_documents: Tensor, key_positions: Tensor) -> Tensor:
        earlier = positions[:, :, None] >= key_positions[:, None, :]
        return ((documents[:, :, None] == key_documents[:, None, :]) & earlier).unsqueeze(1)


Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float | None], Tensor]
"""q[B, heads, queries, d], k, v[B, kv_heads, keys, d], mask[B, 1, queries, keys], scale -> [B, heads, queries, d]."""


def dot_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Every product, seen or not, in one op."""
    return F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def flex_where_masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Blocks of which nothing is seen are skipped; without a mask `dot_product` skips as much."""
    return dot_product(q, k, v, mask, scale) if mask is None else flex(q, k, v, mask, scale)


def flex_on_cuda(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """The faster of both where the tensors are."""
    return (flex_where_masked if q.is_cuda else dot_product)(q, k, v, mask, scale)


WAYS: Final[Mapping[str, Attend]] = MappingProxyType(
    {"auto": flex_on_cuda, "dot_product": dot_product, "flex": flex_where_masked}
)
"""How attention is computed, by the words of `compute.attention`."""


class DotProduct(Module):
    """Scaled dot-product attention: q[B, L, heads, d], k, v[B, L, kv_heads, d] -> [B, L, heads, d].

    mask[B, 1, L, L], True where a query sees a key; None: causal, where the rank has all queries and all keys.
    heads / kv_heads neighbouring queries share a key. A value may have another number of features than a key.
    attend: how it is computed, one of `WAYS`.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """scale: factor of the products; None: 1 / sqrt(d)."""

        scale: float | None = None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attend: Attend = dot_product

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return self.attend(q, k, v, mask, self.config.scale).transpose(1, 2)


class Attention(Module):
    """x[B, L, dim] -> [B, L, dim]."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """wq, wk, wv, wo: projections; head_dim: features of a head; q_norm, k_norm: over those, one for all heads."""

        head_dim: int
        wq: Linear.Config
        wk: Linear.Config
        wv: Linear.Config
        wo: Linear.Config
        inner: DotProduct.Config
        q_norm: RMSNorm.Config | None = None
        k_norm: RMSNorm.Config | None = None

        @property
        def heads(self) -> int:
            """Number of query heads."""
            return self.wq.out_features // self.head_dim

        @property
        def kv_heads(self) -> int:
            """Number of key/value heads."""
            return self.wk.out_features // self.head_dim

        def problems(self, path: str, dims: ParallelismDims) -> list[Problem]:
            heads, kv_heads = self.heads, self.kv_heads
            if heads % dims.tp == 0 and kv_heads % dims.tp_kv == 0 and dims.tp_copy == kv_copies(kv_heads, dims.tp):
                return []
            return [
                Problem(
                    where=path,
                    what=f"{heads} heads with {kv_heads} key/value heads do not split over tp {dims.tp}",
                    why="a rank holds whole heads, and the keys and values that its queries share",
                    fix=f"--parallel.tp {either(legal_tp(heads, kv_heads))}",
                )
            ]

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wq = config.wq.build()
        self.wk = config.wk.build()
        self.wv = config.wv.build()
        self.wo = config.wo.build()
        self.q_norm = config.q_norm.build() if config.q_norm else None
        self.k_norm = config.k_norm.build() if config.k_norm else None
        self.inner = config.inner.build()

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor | None = None) -> Tensor:
        per_head = (-1, self.config.head_dim)
        q = self.wq(x).unflatten(-1, per_head)
        k = self.wk(x).unflatten(-1, per_head)
        v = self.wv(x).unflatten(-1, per_head)
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if self.k_norm is None else self.k_norm(k)
        out = self.inner(rotate(q, cosine, sine), rotate(k, cosine, sine), v, mask)
        return self.wo(out.flatten(-2))


def kv_copies(kv_heads: int, tp: int) -> int:
    """How many neighbouring tp ranks hold the same key/value heads."""
    return tp // kv_heads if kv_heads < tp and tp % kv_heads == 0 else 1


def legal_tp(heads: int, kv_heads: int) -> list[int]:
    """The tp degrees at which every rank holds whole heads and the keys of its own queries."""
    return [tp for tp in range(1, heads + 1) if heads % tp == 0 and (kv_heads % tp == 0 or tp % kv_heads == 0)]

"""Latent attention of DeepSeek-V2 and V3: keys and values of all heads come from one small latent a token, queries
from another. arXiv:2405.04434.

The features of a head that turn with the position are apart from those that do not; their key is one for all heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.comm.grid import ParallelismDims
from meshwright.core.module import Module
from meshwright.errors import Problem, either
from meshwright.models.attention import DotProduct, legal_tp
from meshwright.models.layers import Linear, RMSNorm
from meshwright.models.rope import rotate


class SharedKey(Module):
    """keys[B, L, heads, nope], shared[B, L, rope] -> [B, L, heads, nope + rope]: the one rotary key, rotated, after
    the key of each head that this rank has."""

    def forward(self, keys: Tensor, shared: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        rotated = rotate(shared.unsqueeze(2), cosine, sine)
        return torch.cat((keys, rotated.expand(-1, -1, keys.shape[2], -1)), -1)


class LatentAttention(Module):
    """x[B, L, dim] -> [B, L, dim]."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """nope_dim, rope_dim: features of a query or key that keep still, and that turn; value_dim: of a value.

        wq_a: dim -> latent of queries, q_norm: of that latent, both None where queries have none; wq_b: latent, or dim
        -> heads x (nope + rope). wkv_a: dim -> latent of keys and values, + rope; kv_norm: of that latent; wkv_b:
        latent -> heads x (nope + value). wo: heads x value -> dim.
        """

        nope_dim: int
        rope_dim: int
        value_dim: int
        wq_b: Linear.Config
        wkv_a: Linear.Config
        kv_norm: RMSNorm.Config
        wkv_b: Linear.Config
        wo: Linear.Config
        shared_key: SharedKey.Config
        inner: DotProduct.Config
        wq_a: Linear.Config | None = None
        q_norm: RMSNorm.Config | None = None

        @property
        def heads(self) -> int:
            """Number of heads; each has keys and values of its own."""
            return self.wo.in_features // self.value_dim

        def problems(self, path: str, dims: ParallelismDims) -> list[Problem]:
            heads = self.heads
            if heads % dims.tp == 0:
                return []
            return [
                Problem(
                    where=path,
                    what=f"{heads} heads do not split over tp {dims.tp}",
                    why="a rank holds whole heads, each with its own keys and values",
                    fix=f"--parallel.tp {either(legal_tp(heads, heads))}",
                )
            ]

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wq_a = config.wq_a.build() if config.wq_a else None
        self.q_norm = config.q_norm.build() if config.q_norm else None
        self.wq_b = config.wq_b.build()
        self.wkv_a = config.wkv_a.build()
        self.kv_norm = config.kv_norm.build()
        self.wkv_b = config.wkv_b.build()
        self.shared_key = config.shared_key.build()
        self.inner = config.inner.build()
        self.wo = config.wo.build()

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor | None = None) -> Tensor:
        config: LatentAttention.Config = self.config
        of_query, of_kv = [config.nope_dim, config.rope_dim], [config.nope_dim, config.value_dim]
        q = x if self.wq_a is None else self.wq_a(x)
        q = q if self.q_norm is None else self.q_norm(q)
        still, turning = self.wq_b(q).unflatten(-1, (-1, sum(of_query))).split(of_query, -1)
        q = torch.cat((still, rotate(turning, cosine, sine)), -1)
        latent, shared = self.wkv_a(x).split([self.wkv_b.config.in_features, config.rope_dim], -1)
        keys, values = self.wkv_b(self.kv_norm(latent)).unflatten(-1, (-1, sum(of_kv))).split(of_kv, -1)
        out = self.inner(q, self.shared_key(keys, shared, cosine, sine), values, mask)
        return self.wo(out.flatten(-2))

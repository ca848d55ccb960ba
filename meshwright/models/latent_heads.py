"""`LatentHeads`: the numbers of attention whose keys and values come from one small latent a token."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.models import layouts_latent
from meshwright.models.attention import DotProduct
from meshwright.models.decoder_spec import DecoderSpec, pairs
from meshwright.models.latent import LatentAttention, SharedKey
from meshwright.models.layouts import Plan
from meshwright.models.rope import Yarn


@dataclass(kw_only=True)
class LatentHeads(DecoderSpec):
    """The numbers of a decoder with latent attention."""

    absent_at_0 = DecoderSpec.absent_at_0 | {"q_latent"}

    q_latent: int
    """features of the latent of a token's queries; 0: queries come from the stream itself"""
    kv_latent: int
    """features of the latent of a token's keys and values"""
    nope_dim: int
    """features of a query or key that keep still"""
    rope_dim: int
    """features of a query or key that turn with the position; their key is one for all heads"""
    value_dim: int
    """features of a value"""
    scaling: Yarn | None = None
    """stretch of the rotary wavelengths, for sequences longer than the first training's"""

    @property
    def turned(self) -> int:
        return self.rope_dim

    def problems(self) -> list[Problem]:
        return super().problems() or [*pairs("rope_dim", self.rope_dim), *self._uniform()]

    def _uniform(self) -> list[Problem]:
        if self.scaling is None or self.theta > 1:
            return []
        return [
            Problem(
                where="model.theta",
                what=f"{self.theta}, with wavelengths that are stretched",
                why="the stretch goes over from pair to pair of features, each slower than the one before",
                fix="--model.theta above 1",
            )
        ]

    def tp_copies(self, tp: int) -> int:
        return 1

    def rope_scaling(self) -> Yarn | None:
        return self.scaling

    def attention(self) -> LatentAttention.Config:
        of_query = self.nope_dim + self.rope_dim
        sharpness = self.scaling.sharpness if self.scaling is not None else 1.0
        return LatentAttention.Config(
            nope_dim=self.nope_dim,
            rope_dim=self.rope_dim,
            value_dim=self.value_dim,
            wq_a=self.linear(self.dim, self.q_latent) if self.q_latent else None,
            q_norm=self.norm(self.q_latent) if self.q_latent else None,
            wq_b=self.linear(self.q_latent or self.dim, self.heads * of_query),
            wkv_a=self.linear(self.dim, self.kv_latent + self.rope_dim),
            kv_norm=self.norm(self.kv_latent),
            wkv_b=self.linear(self.kv_latent, self.heads * (self.nope_dim + self.value_dim)),
            shared_key=SharedKey.Config(),
            inner=DotProduct.Config(scale=sharpness / math.sqrt(of_query)),
            wo=self.linear(self.heads * self.value_dim, self.dim, self.std_out),
        )

    def declare_attention(self, attention: LatentAttention.Config, plan: Plan) -> None:
        layouts_latent.declare(attention, plan)

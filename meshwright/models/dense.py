"""`Dense`: the numbers that Llama and Qwen have in common, and the decoder and layouts that they make."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.models import layouts
from meshwright.models.attention import Attention, DotProduct, Visible, kv_copies
from meshwright.models.decoder import Block, Decoder
from meshwright.models.feed_forward import FeedForward
from meshwright.models.layers import Embedding, Linear, RMSNorm
from meshwright.models.layouts import Plan
from meshwright.models.rope import Rope, RopeScaling
from meshwright.models.spec import ModelSpec


@dataclass(kw_only=True)
class Dense(ModelSpec):
    """The numbers of a decoder whose blocks are grouped attention and SwiGLU. A family says how wide a head is."""

    dim: int
    """features of the stream"""
    layers: int
    """number of blocks"""
    heads: int
    """number of query heads"""
    kv_heads: int
    """number of key/value heads; query heads share them in groups"""
    hidden: int
    """features inside the feed-forward"""
    theta: float = 500_000.0
    """base of the rotary wavelengths"""
    epsilon: float = 1e-5
    """added to the mean square in norms"""
    tied: bool = False
    """the head uses the embedding's table"""
    std: float = 0.02
    """standard deviation of first weights; those that write into the stream have 1 / sqrt(2 layers) of it"""

    @property
    @abstractmethod
    def head_dim(self) -> int:
        """Features of a head."""

    def problems(self) -> list[Problem]:
        return super().problems() or [*self._groups(), *self._sizes()]

    def _groups(self) -> list[Problem]:
        if self.heads % self.kv_heads == 0:
            return []
        legal = [str(count) for count in range(1, self.heads + 1) if self.heads % count == 0]
        return [
            Problem(
                where="model.kv_heads",
                what=f"{self.kv_heads} key/value heads cannot be shared by {self.heads} query heads",
                why="every key/value head serves equally many query heads",
                fix=f"--model.kv-heads with one of {', '.join(legal)}",
            )
        ]

    def _sizes(self) -> list[Problem]:
        above = {"theta": self.theta, "epsilon": self.epsilon, "std": self.std}
        return [
            Problem(where=f"model.{name}", what=f"{value}", fix=f"--model.{name} above 0")
            for name, value in above.items()
            if not 0 < value < math.inf
        ]

    def tp_copies(self, tp: int) -> int:
        return kv_copies(self.kv_heads, tp)

    def rope_scaling(self) -> RopeScaling | None:
        """How the rotary wavelengths are stretched."""
        return None

    def head_norm(self) -> RMSNorm.Config | None:
        """The norm of each query and key over its own features, before they turn; one weight for all heads."""
        return None

    def modules(self) -> Decoder.Config:
        return Decoder.Config(
            embedding=Embedding.Config(vocab=self.vocab, dim=self.dim, std=self.std),
            rope=Rope.Config(head_dim=self.head_dim, theta=self.theta, scaling=self.rope_scaling()),
            visible=Visible.Config(),
            blocks=[self._block() for _ in range(self.layers)],
            norm=self._norm(),
            head=self._linear(self.dim, self.vocab),
            tied=self.tied,
        )

    def declare(self, modules: Decoder.Config, plan: Plan) -> None:
        modules.sharding_config = layouts.decoder(plan)
        modules.embedding.sharding_config = layouts.embedding(plan)
        modules.rope.sharding_config = layouts.rope()
        modules.visible.sharding_config = layouts.visible()
        for block in modules.blocks:
            block.attention_norm.sharding_config = layouts.norm(plan)
            block.attention.sharding_config = layouts.enters(plan)
            block.attention.wq.sharding_config = layouts.colwise()
            block.attention.wk.sharding_config = layouts.kv_colwise()
            block.attention.wv.sharding_config = layouts.kv_colwise()
            if block.attention.q_norm is not None:
                block.attention.q_norm.sharding_config = layouts.head_norm()
            if block.attention.k_norm is not None:
                block.attention.k_norm.sharding_config = layouts.kv_head_norm()
            block.attention.inner.sharding_config = layouts.attention_region()
            block.attention.wo.sharding_config = layouts.rowwise(plan)
            block.feed_forward_norm.sharding_config = layouts.norm(plan)
            block.feed_forward.sharding_config = layouts.enters(plan)
            block.feed_forward.w1.sharding_config = layouts.colwise()
            block.feed_forward.w3.sharding_config = layouts.colwise()
            block.feed_forward.w2.sharding_config = layouts.rowwise(plan)
        modules.norm.sharding_config = layouts.norm(plan)
        modules.head.sharding_config = layouts.head(plan)

    def _block(self) -> Block.Config:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        into_stream = self.std / math.sqrt(2 * self.layers)
        return Block.Config(
            attention_norm=self._norm(),
            attention=Attention.Config(
                head_dim=self.head_dim,
                wq=self._linear(self.dim, queries),
                wk=self._linear(self.dim, keys),
                wv=self._linear(self.dim, keys),
                wo=self._linear(queries, self.dim, into_stream),
                q_norm=self.head_norm(),
                k_norm=self.head_norm(),
                inner=DotProduct.Config(),
            ),
            feed_forward_norm=self._norm(),
            feed_forward=FeedForward.Config(
                w1=self._linear(self.dim, self.hidden),
                w2=self._linear(self.hidden, self.dim, into_stream),
                w3=self._linear(self.dim, self.hidden),
            ),
        )

    def _norm(self) -> RMSNorm.Config:
        return RMSNorm.Config(dim=self.dim, epsilon=self.epsilon)

    def _linear(self, inputs: int, outputs: int, std: float | None = None) -> Linear.Config:
        return Linear.Config(in_features=inputs, out_features=outputs, std=std or self.std)

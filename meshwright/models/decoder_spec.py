"""`DecoderSpec`: the numbers that all families have in common, and the decoder and layouts that they make."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.errors import Problem
from meshwright.models import layouts
from meshwright.models.attention import Visible
from meshwright.models.block import Block
from meshwright.models.decoder import Decoder
from meshwright.models.feed_forward import FeedForward
from meshwright.models.layers import Embedding, Linear, RMSNorm
from meshwright.models.layouts import Plan
from meshwright.models.rope import Rope, Stretch
from meshwright.models.spec import ModelSpec, flag


@dataclass(kw_only=True)
class DecoderSpec(ModelSpec):
    """The numbers of a decoder. A family says what its attention is, and what each block feeds forward."""

    dim: int
    """features of the stream"""
    layers: int
    """number of blocks"""
    heads: int
    """number of query heads"""
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
    def turned(self) -> int:
        """Features of a head that rotary embedding turns."""

    @abstractmethod
    def attention(self) -> Any:
        """The config of a block's attention, without its sharding."""

    @abstractmethod
    def declare_attention(self, attention: Any, plan: Plan) -> None:
        """Attach to a block's attention and its parts their shardings."""

    @abstractmethod
    def block(self, number: int) -> Block.Config:
        """The config of a block, without its sharding; blocks are counted from 0."""

    @abstractmethod
    def declare_feed_forward(self, block: Block.Config, plan: Plan) -> None:
        """Attach to what a block feeds forward its sharding."""

    def problems(self) -> list[Problem]:
        return super().problems() or [*above_zero(self._sizes()), *self._stretch()]

    def _sizes(self) -> dict[str, float]:
        """The numbers that are above 0, by field."""
        return {"theta": self.theta, "epsilon": self.epsilon, "std": self.std}

    def _stretch(self) -> list[Problem]:
        """Numbers of the scaling, each of which divides something."""
        scaling = self.rope_scaling()
        return [
            Problem(
                where=f"model.scaling.{name}",
                what=f"{getattr(scaling, name)}",
                fix=f"{flag(f'scaling.{name}')} {words}",
            )
            for name, (holds, words) in (scaling.ranges() if scaling is not None else {}).items()
            if not holds
        ]

    def rope_scaling(self) -> Stretch | None:
        """How the rotary wavelengths are stretched."""
        return None

    def modules(self) -> Decoder.Config:
        return Decoder.Config(
            embedding=Embedding.Config(vocab=self.vocab, dim=self.dim, std=self.std),
            rope=Rope.Config(head_dim=self.turned, theta=self.theta, scaling=self.rope_scaling()),
            visible=Visible.Config(),
            blocks=[self.block(number) for number in range(self.layers)],
            norm=self.norm(self.dim),
            head=self.linear(self.dim, self.vocab),
            tied=self.tied,
        )

    def declare(self, modules: Decoder.Config, plan: Plan) -> None:
        modules.sharding_config = layouts.decoder(plan)
        modules.embedding.sharding_config = layouts.embedding(plan)
        modules.rope.sharding_config = layouts.rope()
        modules.visible.sharding_config = layouts.visible()
        for block in modules.blocks:
            self.declare_block(block, plan)
        modules.norm.sharding_config = layouts.norm(plan)
        modules.head.sharding_config = layouts.head(plan)

    def declare_block(self, block: Block.Config, plan: Plan) -> None:
        """Attach to the parts of a block their shardings."""
        block.attention_norm.sharding_config = layouts.norm(plan)
        self.declare_attention(block.attention, plan)
        block.feed_forward_norm.sharding_config = layouts.norm(plan)
        self.declare_feed_forward(block, plan)

    @property
    def std_out(self) -> float:
        """Standard deviation of first weights that write into the stream."""
        return self.std / math.sqrt(2 * self.layers)

    def attends(self) -> Mapping[str, Any]:
        """The parts of a block's config that all blocks have."""
        return {
            "attention_norm": self.norm(self.dim),
            "attention": self.attention(),
            "feed_forward_norm": self.norm(self.dim),
        }

    def swiglu(self, hidden: int) -> FeedForward.Config:
        """A feed-forward of so many hidden features."""
        return FeedForward.Config(
            w1=self.linear(self.dim, hidden),
            w2=self.linear(hidden, self.dim, self.std_out),
            w3=self.linear(self.dim, hidden),
        )

    def norm(self, features: int) -> RMSNorm.Config:
        """A norm over so many features."""
        return RMSNorm.Config(dim=features, epsilon=self.epsilon)

    def linear(self, inputs: int, outputs: int, std: float | None = None) -> Linear.Config:
        """A projection; std: of its first weights, by default the model's."""
        return Linear.Config(in_features=inputs, out_features=outputs, std=std or self.std)


def declare_swiglu(feed_forward: FeedForward.Config, plan: Plan) -> None:
    """Attach to a feed-forward its shardings."""
    feed_forward.sharding_config = layouts.enters(plan)
    feed_forward.w1.sharding_config = layouts.colwise()
    feed_forward.w3.sharding_config = layouts.colwise()
    feed_forward.w2.sharding_config = layouts.rowwise(plan)


def above_zero(sizes: Mapping[str, float]) -> list[Problem]:
    """What is wrong with numbers, by field, that are above 0 and finite."""
    return [
        Problem(where=f"model.{name}", what=f"{value}", fix=f"{flag(name)} above 0")
        for name, value in sizes.items()
        if not 0 < value < math.inf
    ]


def pairs(name: str, features: int) -> list[Problem]:
    """What is wrong with a number of features that turn."""
    if features % 2 == 0:
        return []
    return [
        Problem(
            where=f"model.{name}",
            what=f"{features} features of a head are not an even number",
            why="rotary embedding turns the features of a head in pairs",
            fix=f"{flag(name)} {features + 1}",
        )
    ]

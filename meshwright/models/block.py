"""A block of a decoder, and one whose feed-forward is a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from meshwright.core.module import Module
from meshwright.models.attention import Attention
from meshwright.models.feed_forward import FeedForward
from meshwright.models.layers import RMSNorm
from meshwright.models.moe import MoE


class Block(Module):
    """x[B, L, dim] -> [B, L, dim]: attention and feed-forward, each normed before and added to its input."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """The parts, in the order they run."""

        attention_norm: RMSNorm.Config
        attention: Attention.Config
        feed_forward_norm: RMSNorm.Config
        feed_forward: FeedForward.Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = config.attention_norm.build()
        self.attention = config.attention.build()
        self.feed_forward_norm = config.feed_forward_norm.build()
        self.feed_forward = config.feed_forward.build()

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine, mask)
        return x + self.feed_forward(self.feed_forward_norm(x))

    def cost(self) -> int:
        """Its arithmetic, in elements of weights that a token is multiplied by; of a whole block."""
        return sum(param.numel() for param in self.parameters())


class SparseBlock(Block):
    """x[B, L, dim] -> the same as a `Block`, how many tokens went to each expert, and what the router is charged for
    it, None where there is no charge."""

    @dataclass(kw_only=True, slots=True)
    class Config(Block.Config):
        """feed_forward: a mixture of experts."""

        feed_forward: MoE.Config  # type: ignore[assignment]

    def forward(  # type: ignore[override]
        self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        x = x + self.attention(self.attention_norm(x), cosine, sine, mask)
        y, counts, charge = self.feed_forward(self.feed_forward_norm(x))
        return x + y, counts, charge

    def cost(self) -> int:
        return super().cost() - self.feed_forward.idle()

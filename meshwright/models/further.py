"""Multi-token prediction: what is learned from the token after the next, at one further depth.

DeepSeek-AI, arXiv:2412.19437, 2.2. It is made where something is learned from it, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.core.module import Module
from meshwright.models.block import Block
from meshwright.models.layers import Linear, RMSNorm


class Further(Module):
    """x[B, L, dim], ahead[B, L, dim] -> [B, L, dim], for the head; and of a block with experts, how many tokens went
    to each and what its router is charged, None where there is nothing of it.

    x: the stream behind the last block; ahead: the embedding of the token after each.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """The parts, in the order they run. projection: 2 dim -> dim. weight: of its loss, beside the main one."""

        stream_norm: RMSNorm.Config
        ahead_norm: RMSNorm.Config
        projection: Linear.Config
        block: Block.Config
        norm: RMSNorm.Config
        weight: float = 0.3

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.weight = config.weight
        self.stream_norm = config.stream_norm.build()
        self.ahead_norm = config.ahead_norm.build()
        self.projection = config.projection.build()
        self.block = config.block.build()
        self.norm = config.norm.build()

    def forward(
        self, x: Tensor, ahead: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        both = torch.cat((self.stream_norm(x), self.ahead_norm(ahead)), -1)
        out = self.block(self.projection(both), cosine, sine, mask)
        y, counts, charge = out if isinstance(out, tuple) else (out, None, None)
        return self.norm(y), counts, charge

    def cost(self) -> int:
        """Its arithmetic without the head's, in elements of weights that a token is multiplied by."""
        others = sum(param.numel() for param in self.parameters()) - sum(
            param.numel() for param in self.block.parameters()
        )
        return others + self.block.cost()

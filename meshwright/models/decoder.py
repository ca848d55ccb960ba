"""A decoder-only transformer: tokens to logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meshwright.comm.grid import ParallelismDims
from meshwright.core.module import Module
from meshwright.core.place import Place
from meshwright.errors import Problem
from meshwright.models.attention import Attention, Visible
from meshwright.models.feed_forward import FeedForward
from meshwright.models.layers import Embedding, Linear, RMSNorm
from meshwright.models.rope import Rope


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


class Decoder(Module):
    """tokens[B, L] -> logits[B, L, vocab].

    positions[B, L]: place of each token in its document; default: 0 ... L-1.
    documents[B, L]: which document each token belongs to; tokens see their own document only. Default: one document.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """tied: the head uses the embedding's table."""

        embedding: Embedding.Config
        rope: Rope.Config
        visible: Visible.Config
        blocks: Sequence[Block.Config]
        norm: RMSNorm.Config
        head: Linear.Config
        tied: bool = False

        def problems(self, path: str, dims: ParallelismDims) -> list[Problem]:
            if dims.pp == 1:
                return []
            return [
                Problem(
                    where=path,
                    what=f"pp {dims.pp}: this decoder has all its blocks on every rank",
                    fix="parallel.pp = 1",
                )
            ]

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = config.embedding.build()
        self.rope = config.rope.build()
        self.visible = config.visible.build()
        self.blocks = nn.ModuleList(block.build() for block in config.blocks)
        self.norm = config.norm.build()
        self.head = config.head.build()
        if config.tied:
            self.head.weight = self.embedding.weight
        self.part, self.is_cut = 0, False

    def localize(self, place: Place) -> None:
        self.part, self.is_cut = place.part("tokens", 1), bool(place.cut("tokens", 1))

    def storage_blocks(self) -> list[list[nn.Module]]:
        """The parts whose parameters are gathered together, in the order they run; what is tied stays with the root."""
        ends: list[nn.Module] = [self.norm] if self.config.tied else [self.norm, self.head]
        start: list[list[nn.Module]] = [] if self.config.tied else [[self.embedding]]
        return [*start, *([block] for block in self.blocks), ends]

    def forward(self, tokens: Tensor, positions: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        if positions is None:
            first = self.part * tokens.shape[1]
            positions = torch.arange(first, first + tokens.shape[1], device=tokens.device).expand_as(tokens)
        if documents is None and self.is_cut:  # causal by shapes alone needs all queries
            documents = torch.zeros_like(tokens)
        mask = None if documents is None else self.visible(documents, documents)
        cosine, sine = self.rope(positions)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cosine, sine, mask)
        return self.head(self.norm(x))

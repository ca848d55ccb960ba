"""A decoder-only transformer: tokens to logits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meshwright.core.module import Module
from meshwright.core.place import Place
from meshwright.models.attention import Attention, Visible
from meshwright.models.feed_forward import FeedForward
from meshwright.models.layers import Embedding, Linear, RMSNorm
from meshwright.models.load import Charge, Load
from meshwright.models.moe import MoE
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


class Decoder(Module):
    """tokens[B, L] -> logits[B, L, vocab].

    Where routers are charged for uneven loads it returns that sum too, float32 [], after what it returns else.

    positions[B, L]: place of each token in its document; default: 0 ... L-1.
    documents[B, L]: which document each token belongs to; tokens see their own document only. Default: one document.
    stream[B, L, dim], units: where other ranks hold other layers, what the layer before the first of `units` gave, and
    the units to run: 0 the embedding, then each block, the last the norm with the head. Without the last it returns
    the stream. Then positions and documents are given. charged []: what the routers of the layers before were charged.
    labels[B, L]: for a head that has the loss in itself: then it returns the sum of the token losses.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """load, charge: where blocks have experts, and where their routers are charged; tied: the head uses the
        embedding's table."""

        embedding: Embedding.Config
        rope: Rope.Config
        visible: Visible.Config
        blocks: Sequence[Block.Config]
        norm: RMSNorm.Config
        head: Linear.Config
        load: Load.Config | None = None
        charge: Charge.Config | None = None
        tied: bool = False

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = config.embedding.build()
        self.rope = config.rope.build()
        self.visible = config.visible.build()
        self.blocks = nn.ModuleDict({str(place): block.build() for place, block in enumerate(config.blocks)})
        sparse = [name for name, block in self.blocks.items() if isinstance(block, SparseBlock)]
        self.loads = nn.ModuleDict({name: config.load.build() for name in sparse} if config.load else {})
        self.charge = config.charge.build() if config.charge else None
        self.norm = config.norm.build()
        self.head = config.head.build()
        if config.tied:
            self.head.weight = self.embedding.weight
        self.part, self.is_cut = 0, False
        self.units = range(len(config.blocks) + 2)

    def costs(self) -> list[float]:
        """For each unit, in the order they run, its arithmetic in elements of weights that a token is multiplied by:
        the embedding, each block, the norm with the head."""
        blocks = [sum(param.numel() for param in block.parameters()) for block in self.blocks.values()]
        return [0, *blocks, self.head.weight.numel()]

    def keep(self, units: Collection[int]) -> None:
        """Drop the parts that are in none of `units`. A tied table stays where the embedding or the head is."""
        first, last = self.units[0], self.units[-1]
        if first not in units and not (self.config.tied and last in units):
            self.embedding = None
        for place in set(range(len(self.blocks))) - {unit - 1 for unit in units}:
            del self.blocks[str(place)]
            if str(place) in self.loads:
                del self.loads[str(place)]
        if last not in units:
            self.norm = self.head = None

    def parts(self, units: range) -> list[nn.Module]:
        """The modules of some units that this rank has."""
        first, last = self.units[0], self.units[-1]
        found = [self.embedding] if first in units else []
        found += [block for name, block in self.blocks.items() if int(name) + 1 in units]
        return [*found, self.norm, self.head] if last in units else found

    def localize(self, place: Place) -> None:
        self.part, self.is_cut = place.part("tokens", 1), bool(place.cut("tokens", 1))

    def storage_blocks(self) -> list[list[nn.Module]]:
        """The parts whose parameters are gathered together, in the order they run; what is tied stays with the root."""
        tied = {id(self.embedding), id(self.head)} if self.config.tied else set()
        parts = [[self.embedding], *([block] for block in self.blocks.values()), [self.norm, self.head]]
        kept = [[part for part in parts if part is not None and id(part) not in tied] for parts in parts]
        return [parts for parts in kept if parts]

    def forward(
        self,
        tokens: Tensor | None,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        stream: Tensor | None = None,
        units: range | None = None,
        labels: Tensor | None = None,
        charged: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        units = self.units if units is None else units
        if tokens is not None and positions is None:
            first = self.part * tokens.shape[1]
            positions = torch.arange(first, first + tokens.shape[1], device=tokens.device).expand_as(tokens)
        if tokens is not None and documents is None and self.is_cut:  # causal by shapes alone needs all queries
            documents = torch.zeros_like(tokens)
        mask = None if documents is None else self.visible(documents, positions, documents, positions)
        cosine, sine = self.rope(positions)
        x = self.embedding(tokens) if stream is None else stream
        charges: list[Tensor] = []
        for name, block in self.blocks.items():
            if int(name) + 1 not in units:
                continue
            if name in self.loads:
                x, counts, charge = block(x, cosine, sine, mask)
                self.loads[name](counts)
                charges += [] if charge is None else [charge]
            else:
                x = block(x, cosine, sine, mask)
        if self.units[-1] in units:
            x = self.head(self.norm(x)) if labels is None else self.head(self.norm(x), labels)
        charges = [self.charge(sum(charges[1:], charges[0]))] if charges else []
        charges += [] if charged is None else [charged]
        return (x, sum(charges[1:], charges[0])) if charges else x

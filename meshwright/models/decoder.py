"""A decoder-only transformer: tokens to logits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from meshwright.core.module import Module
from meshwright.core.place import Place
from meshwright.models.attention import Visible
from meshwright.models.block import Block, SparseBlock
from meshwright.models.further import Further
from meshwright.models.layers import Embedding, Linear, RMSNorm
from meshwright.models.load import Charge, Load
from meshwright.models.rope import Rope

FURTHER: Final = "further"
"""The name of the block of the further prediction, where others have a number."""


class Decoder(Module):
    """tokens[B, L] -> logits[B, L, vocab].

    What is added to the loss it returns too, float32 [], after what it returns else: what routers are charged for
    uneven loads, and the weighed loss of the further prediction.

    positions[B, L]: place of each token in its document; default: 0 ... L-1.
    documents[B, L]: which document each token belongs to; tokens see their own document only. Default: one document.
    stream[B, L, dim], units: where other ranks hold other layers, what the layer before the first of `units` gave, and
    the units to run: 0 the embedding, then each block, the last the norm with the head. Without the last it returns
    the stream. Then positions and documents are given. charged []: what the routers of the layers before were charged.
    labels[B, L]: for a head that has the loss in itself: then it returns the sum of the token losses.
    ahead[B, L], ahead_labels[B, L]: the token after each, and the one after that, for the further prediction, with such
    a head; without them none is made.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """load, charge: where blocks have experts, and where their routers are charged; further: the prediction of the
        token after the next; tied: the head uses the embedding's table."""

        embedding: Embedding.Config
        rope: Rope.Config
        visible: Visible.Config
        blocks: Sequence[Block.Config]
        norm: RMSNorm.Config
        head: Linear.Config
        load: Load.Config | None = None
        charge: Charge.Config | None = None
        further: Further.Config | None = None
        tied: bool = False

        @property
        def shares_table(self) -> bool:
            """Whether the last unit uses the embedding's table too: for its head, or for the tokens ahead."""
            return self.tied or self.further is not None

        def sparse(self) -> dict[str, SparseBlock.Config]:
            """The blocks with experts, in the order they run: by number, or "further"."""
            blocks = {str(number): block for number, block in enumerate(self.blocks)}
            blocks |= {FURTHER: self.further.block} if self.further is not None else {}
            return {name: block for name, block in blocks.items() if isinstance(block, SparseBlock.Config)}

    embedding: Any  # None, as norm, head and further, on a rank that has other units
    norm: Any
    head: Any
    further: Any
    charge: Any  # None where routers are not charged

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = config.embedding.build()
        self.rope = config.rope.build()
        self.visible = config.visible.build()
        self.blocks = nn.ModuleDict({str(place): block.build() for place, block in enumerate(config.blocks)})
        self.loads = nn.ModuleDict({name: config.load.build() for name in config.sparse()} if config.load else {})
        self.charge = config.charge.build() if config.charge else None
        self.norm = config.norm.build()
        self.head = config.head.build()
        self.further = config.further.build() if config.further else None
        if config.tied:
            self.head.weight = self.embedding.weight
        self.part, self.is_cut = 0, False
        self.units = range(len(config.blocks) + 2)

    def costs(self) -> list[float]:
        """For each unit, in the order they run, its arithmetic in elements of weights that a token is multiplied by:
        the embedding, each block, the norm with the head and the further prediction. Of a whole model."""
        head = self.head.weight.numel()
        further = head + self.further.cost() if self.further is not None else 0
        return [0, *(cast(Block, block).cost() for block in self.blocks.values()), head + further]

    def sparse(self) -> dict[str, SparseBlock]:
        """The blocks with experts that this rank has, by the names of `Config.sparse`."""
        blocks = dict(self.blocks.items()) | ({FURTHER: self.further.block} if self.further is not None else {})
        return {name: block for name, block in blocks.items() if isinstance(block, SparseBlock)}

    def keep(self, units: Collection[int]) -> None:
        """Drop the parts that are in none of `units`. A table that is shared stays where the first or the last is."""
        first, last = self.units[0], self.units[-1]
        if first not in units and not (self.config.shares_table and last in units):
            self.embedding = None
        for place in set(range(len(self.blocks))) - {unit - 1 for unit in units}:
            del self.blocks[str(place)]
        if last not in units:
            self.norm = self.head = self.further = None
        for name in self.loads.keys() - self.sparse().keys():
            del self.loads[name]

    def parts(self, units: range) -> list[nn.Module]:
        """The modules of some units that this rank has."""
        first, last = self.units[0], self.units[-1]
        found = [self.embedding] if first in units else []
        found += [block for name, block in self.blocks.items() if int(name) + 1 in units]
        if last in units:
            found += (
                [self.norm, self.head] if self.further is None else [self.norm, self.head, self.further, self.embedding]
            )
        return found

    def localize(self, place: Place) -> None:
        self.part, self.is_cut = place.part("tokens", 1), bool(place.cut("tokens", 1))

    def storage_blocks(self) -> list[list[nn.Module]]:
        """The parts whose parameters are gathered together, in the order they run; what is tied or runs twice stays
        with the root."""
        root = {id(self.embedding), id(self.head)} if self.config.shares_table else set()
        blocks = [[block] for block in self.blocks.values()]
        parts = [[self.embedding], *blocks, [self.norm, self.head], [self.further]]
        kept = [[part for part in parts if part is not None and id(part) not in root] for parts in parts]
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
        ahead: Tensor | None = None,
        ahead_labels: Tensor | None = None,
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
        weighed: list[Tensor] = []
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
            if ahead is not None:
                y, counts, charge = self.further(x, self.embedding(ahead), cosine, sine, mask)
                if FURTHER in self.loads:
                    self.loads[FURTHER](counts)
                charges += [] if charge is None else [charge]
                weighed = [self.further.weight * self.head(y, ahead_labels)]
            x = self.head(self.norm(x)) if labels is None else self.head(self.norm(x), labels)
        added = [self.charge(sum(charges[1:], charges[0]))] if charges else []
        added += weighed if charged is None else [charged, *weighed]
        return (x, sum(added[1:], added[0])) if added else x

"""`Dense`: the numbers that Llama and the dense Qwen have in common."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.models.block import Block
from meshwright.models.decoder_spec import declare_swiglu
from meshwright.models.heads import GroupedHeads
from meshwright.models.layouts import Plan


@dataclass(kw_only=True)
class Dense(GroupedHeads):
    """The numbers of a decoder whose blocks are grouped attention and SwiGLU."""

    hidden: int
    """features inside the feed-forward"""

    def block(self, number: int) -> Block.Config:
        return Block.Config(**self.attends(), feed_forward=self.swiglu(self.hidden))

    def declare_feed_forward(self, block: Block.Config, plan: Plan) -> None:
        declare_swiglu(block.feed_forward, plan)

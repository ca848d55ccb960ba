"""What a router did, kept beside the blocks: a block that is computed again does not count twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from meshwright.core.init import Constant, Init
from meshwright.core.module import Module


class Load(Module):
    """Adds up the tokens that a rank sent to each expert. tokens[experts], int64: since they were set to zero.

    counts[experts] -> nothing.
    """

    initial: ClassVar[Mapping[str, Init]] = {"tokens": Constant(0)}
    tokens: Tensor

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """experts: how many there are. rate: by how much the bias of a router's choice moves towards even loads after
        a step, where it has one."""

        experts: int
        rate: float = 0.0

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.register_buffer("tokens", torch.empty(config.experts, dtype=torch.int64), persistent=False)

    def forward(self, counts: Tensor) -> None:
        self.tokens += counts


class Charge(Module):
    """auxiliary[] -> the same: what a rank's routers are charged for uneven loads, brought into the loss's layout."""

    def forward(self, auxiliary: Tensor) -> Tensor:
        return auxiliary

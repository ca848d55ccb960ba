"""Rotary position embedding: the first half of a head's features is rotated against the second.

Su et al., arXiv:2104.09864; halves as in the Hugging Face layout of Llama weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.core.init import Computed, Init
from meshwright.core.module import Module


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Stretches the slow frequencies of a model that was trained on shorter sequences, as Llama 3.1 does.

    factor: by how much; low, high: waves per `length` tokens below which a frequency is stretched by the whole
    factor, above which it stays; length: tokens in the sequences it was trained on first.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    length: int = 8192


class Rope(Module):
    """positions[B, L] -> cosine and sine, each [B, L, 1, head_dim]."""

    frequencies: Tensor

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """theta: base of the wavelengths."""

        head_dim: int
        theta: float = 500_000.0
        scaling: RopeScaling | None = None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.empty(config.head_dim // 2), persistent=False)

    def initializers(self) -> Mapping[str, Init]:
        return {"frequencies": Computed(self._frequencies)}

    def _frequencies(self, index: Tensor) -> Tensor:
        """Radians per position of feature pair `index`."""
        config: Rope.Config = self.config
        frequency = config.theta ** (-2.0 * index.float() / config.head_dim)
        if config.scaling is None:
            return frequency
        scaling = config.scaling
        waves = scaling.length * frequency / (2 * math.pi)
        kept = ((waves - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
        return frequency * (kept + (1 - kept) / scaling.factor)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angle = positions.unsqueeze(-1).float() * self.frequencies
        angle = torch.cat((angle, angle), -1).unsqueeze(-2)
        return angle.cos(), angle.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x[B, L, heads, head_dim] rotated by its position's angles."""
    first, second = x.chunk(2, -1)
    return (x * cosine + torch.cat((-second, first), -1) * sine).to(x.dtype)

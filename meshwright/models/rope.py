"""Rotary position embedding: the first half of a head's features is rotated against the second.

Su et al., arXiv:2104.09864; halves as in the Hugging Face layout of Llama weights. DeepSeek's published weights turn
neighbours instead: their rows are reordered once, as they are loaded (`in_halves`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from meshwright.core.init import Computed, Init
from meshwright.core.module import Module
from meshwright.models.spec import MOST


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

    @property
    def amplitude(self) -> float:
        """Factor of cosine and sine."""
        return 1.0

    def ranges(self) -> dict[str, tuple[bool, str]]:
        """Field -> whether it is in its range, and which that is."""
        return {
            "factor": (0 < self.factor < math.inf, "above 0, and finite"),
            "low": (0 < self.low < math.inf, "above 0, and finite"),
            "high": (self.low < self.high < math.inf, f"above low {self.low}, and finite"),
            "length": (1 <= self.length <= MOST, f"from 1 to {MOST}"),
        }

    def kept(self, frequency: Tensor, index: Tensor, pairs: int, theta: float) -> Tensor:
        """frequency[n], radians per position of the pairs `index`[n] of all `pairs` -> how much of each stays as it
        is, from 0 to 1."""
        waves = self.length * frequency / (2 * math.pi)
        return ((waves - self.low) / (self.high - self.low)).clamp(0, 1)


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """Stretches the slow frequencies, and sharpens attention with the length. Peng et al., arXiv:2309.00071.

    factor: by how much; beta_slow, beta_fast: waves per `length` tokens below which a frequency is stretched by the
    whole factor, above which it stays; between them pairs go over evenly, by their number. length: tokens in the
    sequences it was trained on first. mscale, mscale_all_dim: how much queries and keys grow with the factor, those
    of rotary features and of all; DeepSeek-V3 has them alike, so that the products alone grow.
    """

    factor: float = 40.0
    beta_slow: float = 1.0
    beta_fast: float = 32.0
    length: int = 4096
    mscale: float = 1.0
    mscale_all_dim: float = 1.0

    @property
    def amplitude(self) -> float:
        """Factor of cosine and sine."""
        return self._grown(self.mscale) / self._grown(self.mscale_all_dim)

    @property
    def sharpness(self) -> float:
        """Factor of the products of queries and keys."""
        return self._grown(self.mscale_all_dim) ** 2

    def ranges(self) -> dict[str, tuple[bool, str]]:
        """Field -> whether it is in its range, and which that is."""
        return {
            "factor": (0 < self.factor < math.inf, "above 0, and finite"),
            "beta_slow": (0 < self.beta_slow < math.inf, "above 0, and finite"),
            "beta_fast": (self.beta_slow < self.beta_fast < math.inf, f"above beta_slow {self.beta_slow}, and finite"),
            "length": (1 <= self.length <= MOST, f"from 1 to {MOST}"),
            "mscale": (0 <= self.mscale < math.inf, "from 0, and finite"),
            "mscale_all_dim": (0 <= self.mscale_all_dim < math.inf, "from 0, and finite"),
        }

    def _grown(self, mscale: float) -> float:
        return 1.0 + 0.1 * mscale * math.log(max(self.factor, 1.0))

    def kept(self, frequency: Tensor, index: Tensor, pairs: int, theta: float) -> Tensor:
        """frequency[n], radians per position of the pairs `index`[n] of all `pairs` -> how much of each stays as it
        is, from 0 to 1."""
        first = max(math.floor(self._pair(self.beta_fast, pairs, theta)), 0)
        past = min(math.ceil(self._pair(self.beta_slow, pairs, theta)), 2 * pairs - 1)
        return 1 - ((index.float() - first) / max(past - first, _STEP)).clamp(0, 1)

    def _pair(self, waves: float, pairs: int, theta: float) -> float:
        """The number, not whole, of the pair of features that makes so many waves in `length` tokens."""
        return pairs * math.log(self.length / (waves * 2 * math.pi)) / math.log(theta)


_STEP: Final = 0.001
"""Width of a slope that has none."""


class Rope(Module):
    """positions[B, L] -> cosine and sine, each [B, L, 1, head_dim]."""

    frequencies: Tensor

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """head_dim: features that turn; theta: base of the wavelengths."""

        head_dim: int
        theta: float = 500_000.0
        scaling: RopeScaling | Yarn | None = None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.empty(config.head_dim // 2), persistent=False)
        self.amplitude = config.scaling.amplitude if config.scaling is not None else 1.0

    def initializers(self) -> Mapping[str, Init]:
        return {"frequencies": Computed(self._frequencies)}

    def _frequencies(self, index: Tensor) -> Tensor:
        """Radians per position of feature pair `index`."""
        config: Rope.Config = self.config
        frequency = config.theta ** (-2.0 * index.float() / config.head_dim)
        if config.scaling is None:
            return frequency
        kept = config.scaling.kept(frequency, index, config.head_dim // 2, config.theta)
        return frequency * (kept + (1 - kept) / config.scaling.factor)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angle = positions.unsqueeze(-1).float() * self.frequencies
        angle = torch.cat((angle, angle), -1).unsqueeze(-2)
        if self.amplitude == 1.0:
            return angle.cos(), angle.sin()
        return angle.cos() * self.amplitude, angle.sin() * self.amplitude


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x[B, L, heads, head_dim] rotated by its position's angles."""
    first, second = x.chunk(2, -1)
    return (x * cosine + torch.cat((-second, first), -1) * sine).to(x.dtype)


def in_halves(pairs: Tensor) -> Tensor:
    """The rows [..., n, inputs] of a projection to rotary features whose neighbours turn together, 0 with 1, in the
    order that `rotate` wants: 0 with n / 2. Queries and keys alike reordered have the same products."""
    return torch.cat((pairs[..., 0::2, :], pairs[..., 1::2, :]), -2)

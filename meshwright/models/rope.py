"""Rotary position embedding: the first half of a head's features is rotated against the second.

Su et al., arXiv:2104.09864; halves as in the Hugging Face layout of Llama weights. DeepSeek's published weights turn
neighbours instead: their rows are reordered once, as they are loaded (`in_halves`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from meshwright.core.init import Computed, Init
from meshwright.core.module import Module
from meshwright.models.spec import MOST


@dataclass(frozen=True, kw_only=True)
class Stretch(ABC):
    """How the slow frequencies of a model that was trained on shorter sequences are stretched.

    factor: by how much; length: tokens in the sequences it was trained on first.
    """

    factor: float
    length: int

    @property
    def amplitude(self) -> float:
        """Factor of cosine and sine."""
        return 1.0

    def ranges(self) -> dict[str, tuple[bool, str]]:
        """Field -> whether it is in its range, and which that is."""
        return {"factor": _finite(self.factor), "length": (1 <= self.length <= MOST, f"from 1 to {MOST}")}

    @abstractmethod
    def kept(self, frequency: Tensor, index: Tensor, pairs: int, theta: float) -> Tensor:
        """frequency[n], radians per position of the pairs of features `index`[n], of all `pairs` -> how much of each
        stays as it is, from 0 to 1; the rest is stretched."""


@dataclass(frozen=True, kw_only=True)
class RopeScaling(Stretch):
    """As Llama 3.1 does. low, high: waves per `length` tokens below which a frequency is stretched by the whole factor,
    above which it stays."""

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    length: int = 8192

    def ranges(self) -> dict[str, tuple[bool, str]]:
        high = self.low < self.high < math.inf, f"above low {self.low}, and finite"
        return {**super().ranges(), "low": _finite(self.low), "high": high}

    def kept(self, frequency: Tensor, index: Tensor, pairs: int, theta: float) -> Tensor:
        waves = self.length * frequency / (2 * math.pi)
        return ((waves - self.low) / (self.high - self.low)).clamp(0, 1)


@dataclass(frozen=True, kw_only=True)
class Yarn(Stretch):
    """With the stretch attention gets sharper. Peng et al., arXiv:2309.00071; the numbers are DeepSeek-V3's.

    beta_slow, beta_fast: waves per `length` tokens below which a frequency is stretched by the whole factor, above
    which it stays; between them pairs of features go over evenly, by their number. mscale, mscale_all_dim: how much
    rotary features, and how much all, of queries and keys grow with the logarithm of the factor.
    """

    factor: float = 40.0
    beta_slow: float = 1.0
    beta_fast: float = 32.0
    length: int = 4096
    mscale: float = 1.0
    mscale_all_dim: float = 1.0

    @property
    def amplitude(self) -> float:
        return self._grown(self.mscale) / self._grown(self.mscale_all_dim)

    @property
    def sharpness(self) -> float:
        """Factor of the products of queries and keys, beside the amplitude's."""
        return self._grown(self.mscale_all_dim) ** 2

    def _grown(self, mscale: float) -> float:
        return 1.0 + 0.1 * mscale * math.log(max(self.factor, 1.0))

    def ranges(self) -> dict[str, tuple[bool, str]]:
        fast = self.beta_slow < self.beta_fast < math.inf, f"above beta_slow {self.beta_slow}, and finite"
        grown = {name: (0 <= getattr(self, name) < math.inf, "from 0, and finite") for name in _MSCALES}
        return {**super().ranges(), "beta_slow": _finite(self.beta_slow), "beta_fast": fast, **grown}

    def kept(self, frequency: Tensor, index: Tensor, pairs: int, theta: float) -> Tensor:
        first = max(math.floor(self._pair(self.beta_fast, pairs, theta)), 0)
        past = min(math.ceil(self._pair(self.beta_slow, pairs, theta)), 2 * pairs - 1)
        return 1 - ((index.float() - first) / max(past - first, _STEP)).clamp(0, 1)

    def _pair(self, waves: float, pairs: int, theta: float) -> float:
        """The number, not whole, of the pair of features that makes so many waves in `length` tokens."""
        return pairs * math.log(self.length / (waves * 2 * math.pi)) / math.log(theta)


def _finite(value: float) -> tuple[bool, str]:
    return 0 < value < math.inf, "above 0, and finite"


_MSCALES: Final = ("mscale", "mscale_all_dim")
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
        scaling: Stretch | None = None

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

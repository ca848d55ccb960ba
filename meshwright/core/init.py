"""Initial values that depend on the parameter's name and each element's global index, never on the layout.

A counter-based generator (splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014)
turns (key, index) into a number, so every rank computes exactly the elements that it holds.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

_BLOCK: Final = 1 << 22
"""Elements computed at a time: bounds the memory of the int64 and float64 intermediates."""


class Init(ABC):
    """How a state gets its first values."""

    @abstractmethod
    def values(self, key: int, index: Tensor) -> Tensor:
        """index int64 [n], flat positions in the global tensor -> values [n]."""

    def fill(self, local: Tensor, spans: Sequence[range], shape: Sequence[int], key: int) -> None:
        """Write into `local` its part, `spans` of each dim, of the global tensor of `shape`.

        Errors: `ValueError` where the part has another shape: layout and storage would not agree.
        """
        held = tuple(map(len, spans))
        if held != tuple(local.shape):
            raise ValueError(f"a part of shape {tuple(local.shape)} cannot hold positions {held} of {tuple(shape)}")
        flat = local.detach().reshape(-1) if local.is_contiguous() else None
        out = flat if flat is not None else torch.empty(local.numel(), dtype=local.dtype, device=local.device)
        for start in range(0, local.numel(), _BLOCK):
            stop = min(start + _BLOCK, local.numel())
            out[start:stop] = self.values(key, _global_index(start, stop, spans, shape, local.device)).to(local.dtype)
        if flat is None:
            local.detach().copy_(out.view(local.shape))


@dataclass(frozen=True)
class TruncatedNormal(Init):
    """Normal of mean 0, cut off at `cut` standard deviations of the uncut one, `std`."""

    std: float
    cut: float = 3.0

    def values(self, key: int, index: Tensor) -> Tensor:
        edge = math.erf(self.cut / math.sqrt(2))
        return torch.erfinv((2 * uniform(key, index) - 1) * edge) * (self.std * math.sqrt(2))


@dataclass(frozen=True)
class Constant(Init):
    """The same value everywhere."""

    value: float

    def values(self, key: int, index: Tensor) -> Tensor:
        return torch.full(index.shape, self.value, device=index.device)


@dataclass(frozen=True)
class Computed(Init):
    """Values of a function of the flat index."""

    function: Callable[[Tensor], Tensor]

    def values(self, key: int, index: Tensor) -> Tensor:
        return self.function(index)


def key_of(seed: int, name: str) -> int:
    """The generator's key for the state `name`: an int64."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little", signed=True)


def uniform(key: int, index: Tensor) -> Tensor:
    """index int64 [n] -> float64 [n], uniform in (0, 1) with 52 bits, independent between keys and indices."""
    z = index * _signed(0x9E3779B97F4A7C15) + key
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    z = z ^ _shift(z, 31)
    return _shift(z, 12).double() * 2.0**-52 + 2.0**-53  # exact: a 53rd bit would round the largest to 1


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's `>>` on int64 keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _global_index(start: int, stop: int, spans: Sequence[range], shape: Sequence[int], device: torch.device) -> Tensor:
    """Flat global positions of the local flat positions start ... stop-1."""
    rest = torch.arange(start, stop, device=device)
    index = torch.zeros_like(rest)
    stride = 1
    for span, length in zip(reversed(spans), reversed(shape), strict=True):
        index += (rest % len(span) + span.start) * stride
        rest = rest // len(span)
        stride *= length
    return index

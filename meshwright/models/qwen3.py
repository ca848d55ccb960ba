"""Qwen3, dense, in its published sizes, and a small one for a laptop. Yang et al., arXiv:2505.09388."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from meshwright.errors import Problem
from meshwright.models.decoder_spec import pairs
from meshwright.models.dense import Dense
from meshwright.models.heads import GroupedHeads
from meshwright.models.layers import RMSNorm
from meshwright.models.spec import numbers_of


@dataclass(kw_only=True)
class NormedHeads(GroupedHeads):
    """The numbers of Qwen3's attention: queries and keys are normed, each over the features of its head."""

    head_dim: int = 128
    """features of a head, whatever the stream has"""
    theta: float = 1_000_000.0
    """base of the rotary wavelengths"""
    epsilon: float = 1e-6
    """added to the mean square in norms"""

    def problems(self) -> list[Problem]:
        return super().problems() or pairs("head_dim", self.head_dim)

    def head_norm(self) -> RMSNorm.Config:
        return RMSNorm.Config(dim=self.head_dim, epsilon=self.epsilon)


@dataclass(kw_only=True)
class Qwen3(NormedHeads, Dense):
    """The numbers of a dense Qwen3."""


_SIZES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "debug": {
            "dim": 256,
            "layers": 6,
            "heads": 8,
            "kv_heads": 4,
            "head_dim": 64,
            "hidden": 768,
            "vocab": 4096,
            "tied": True,
        },
        "0.6b": {"dim": 1024, "layers": 28, "heads": 16, "kv_heads": 8, "hidden": 3072, "tied": True},
        "1.7b": {"dim": 2048, "layers": 28, "heads": 16, "kv_heads": 8, "hidden": 6144, "tied": True},
        "4b": {"dim": 2560, "layers": 36, "heads": 32, "kv_heads": 8, "hidden": 9728, "tied": True},
        "8b": {"dim": 4096, "layers": 36, "heads": 32, "kv_heads": 8, "hidden": 12288},
        "14b": {"dim": 5120, "layers": 40, "heads": 40, "kv_heads": 8, "hidden": 17408},
        "32b": {"dim": 5120, "layers": 64, "heads": 64, "kv_heads": 8, "hidden": 25600},
    }
)
SIZES: Final = tuple(_SIZES)
"""The names that `qwen3` knows."""


def qwen3(size: str) -> Qwen3:
    """The numbers of a size: debug, and 0.6b to 32b as published.

    Errors: `ConfigError` for another name.
    """
    return Qwen3(**{"vocab": 151_936, **numbers_of(_SIZES, size, "qwen3")})

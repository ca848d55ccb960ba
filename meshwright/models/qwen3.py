"""Qwen3, dense, in its published sizes, and a small one for a laptop. Yang et al., arXiv:2505.09388."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from meshwright.errors import Problem
from meshwright.models.dense import Dense
from meshwright.models.layers import RMSNorm


@dataclass(kw_only=True)
class Qwen3(Dense):
    """The numbers of a dense Qwen3. Queries and keys are normed, each over the features of its head."""

    head_dim: int = 128
    """features of a head, whatever the stream has"""
    theta: float = 1_000_000.0
    """base of the rotary wavelengths"""
    epsilon: float = 1e-6
    """added to the mean square in norms"""

    def problems(self) -> list[Problem]:
        return super().problems() or self._pairs()

    def head_norm(self) -> RMSNorm.Config:
        return RMSNorm.Config(dim=self.head_dim, epsilon=self.epsilon)

    def _pairs(self) -> list[Problem]:
        if self.head_dim % 2 == 0:
            return []
        return [
            Problem(
                where="model.head_dim",
                what=f"{self.head_dim} features of a head are not an even number",
                why="rotary embedding turns the features of a head in pairs",
                fix=f"--model.head-dim {self.head_dim + 1}",
            )
        ]


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

    Errors: `KeyError` for another name.
    """
    return Qwen3(**{"vocab": 151_936, **_SIZES[size]})

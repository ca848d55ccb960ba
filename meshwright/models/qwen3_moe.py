"""Qwen3 with mixtures of experts, in its published sizes, and a small one for a laptop. arXiv:2505.09388."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from meshwright.models.qwen3 import NormedHeads
from meshwright.models.router import Choice
from meshwright.models.sparse import Sparse
from meshwright.models.spec import numbers_of


@dataclass(kw_only=True)
class Qwen3Moe(NormedHeads, Sparse):
    """The numbers of a Qwen3 whose blocks are all mixtures of experts."""

    def choice(self) -> Choice.Config:
        return Choice.Config(
            experts=self.experts, active=self.active, biased=self.balance == "bias", balance=self.charged
        )


_SIZES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "debug": {
            "dim": 256,
            "layers": 4,
            "heads": 8,
            "kv_heads": 4,
            "head_dim": 64,
            "experts": 8,
            "active": 2,
            "expert_hidden": 256,
            "balance_rate": 0.02,
            "vocab": 4096,
        },
        "30b-a3b": {"dim": 2048, "layers": 48, "heads": 32, "kv_heads": 4, "expert_hidden": 768},
        "235b-a22b": {"dim": 4096, "layers": 94, "heads": 64, "kv_heads": 4, "expert_hidden": 1536},
    }
)
SIZES: Final = tuple(_SIZES)
"""The names that `qwen3_moe` knows."""


def qwen3_moe(size: str) -> Qwen3Moe:
    """The numbers of a size: debug, and 30b-a3b and 235b-a22b as published.

    Errors: `ConfigError` for another name.
    """
    return Qwen3Moe(**{"vocab": 151_936, "experts": 128, "active": 8, **numbers_of(_SIZES, size, "qwen3_moe")})

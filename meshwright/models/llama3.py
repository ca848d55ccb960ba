"""Llama 3 in its published sizes, and a small one for a laptop. Grattafiori et al., arXiv:2407.21783."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from meshwright.errors import Problem
from meshwright.models.dense import Dense
from meshwright.models.rope import RopeScaling
from meshwright.models.spec import numbers_of


@dataclass(kw_only=True)
class Llama3(Dense):
    """The numbers of a Llama 3."""

    scaling: RopeScaling | None = None
    """stretch of the rotary wavelengths, for sequences longer than the first training's"""

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    def problems(self) -> list[Problem]:
        return super().problems() or self._splits()

    def rope_scaling(self) -> RopeScaling | None:
        return self.scaling

    def _splits(self) -> list[Problem]:
        """Features into heads."""
        if self.dim % (2 * self.heads) == 0:
            return []
        return [
            Problem(
                where="model.dim",
                what=f"{self.dim} features do not make {self.heads} heads of an even number each",
                why="rotary embedding turns the features of a head in pairs",
                fix=f"--model.dim {-(-self.dim // (2 * self.heads)) * 2 * self.heads}",
            )
        ]


_LLAMA_3_2: Final = RopeScaling(factor=32.0)
_SIZES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "debug": {"dim": 256, "layers": 6, "heads": 8, "kv_heads": 4, "hidden": 768, "vocab": 4096},
        "1b": {
            "dim": 2048,
            "layers": 16,
            "heads": 32,
            "kv_heads": 8,
            "hidden": 8192,
            "tied": True,
            "scaling": _LLAMA_3_2,
        },
        "3b": {
            "dim": 3072,
            "layers": 28,
            "heads": 24,
            "kv_heads": 8,
            "hidden": 8192,
            "tied": True,
            "scaling": _LLAMA_3_2,
        },
        "8b": {"dim": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "hidden": 14336},
        "70b": {"dim": 8192, "layers": 80, "heads": 64, "kv_heads": 8, "hidden": 28672},
        "405b": {"dim": 16384, "layers": 126, "heads": 128, "kv_heads": 8, "hidden": 53248, "scaling": RopeScaling()},
    }
)
SIZES: Final = tuple(_SIZES)
"""The names that `llama3` knows."""


def llama3(size: str) -> Llama3:
    """The numbers of a size: debug, and 1b to 405b as published.

    Errors: `ConfigError` for another name.
    """
    return Llama3(**{"vocab": 128_256, **numbers_of(_SIZES, size, "llama3")})

"""A model's numbers made small: the same structure, and cut alike by any few ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FEW: Final = range(2, 9)
"""Numbers of ranks over which a small number divides exactly where the great one does."""
HEAD: Final = 4
"""Features of a head: rotary embedding turns them in pairs."""
STD: Final = 0.2
"""Of first weights: on few features gradients then stand well above what is rounded off."""


def alike(number: int, least: int) -> int:
    """The smallest number from `least` on, at most `number`, which the same of `FEW` divide."""
    wanted = _divisors(number)
    return next((small for small in range(least, number) if _divisors(small) == wanted), number)


def smaller(numbers: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Of a model's numbers by name those that become small; layers: blocks at most.

    Key/value heads shrink, and query heads with them: as many share one as before. What is no size stays.
    """
    found: dict[str, Any] = {}
    for name, least in _LEAST.items():
        if name in numbers:
            found[name] = alike(numbers[name], least)
    if "layers" in numbers:
        found["layers"] = min(numbers["layers"], layers)
    if {"heads", "kv_heads"} <= numbers.keys():
        found["kv_heads"] = alike(numbers["kv_heads"], 1)
        found["heads"] = found["kv_heads"] * (numbers["heads"] // numbers["kv_heads"])
    elif "heads" in numbers:
        found["heads"] = alike(numbers["heads"], 1)
    if "head_dim" in numbers:
        found["head_dim"] = HEAD
        found["dim"] = alike(numbers["dim"], 32)
    elif "heads" in found:
        found["dim"] = found["heads"] * HEAD
    if "std" in numbers:
        found["std"] = max(numbers["std"], STD)
    return found


_LEAST: Final[Mapping[str, int]] = {"vocab": 64, "hidden": 32}


def _divisors(number: int) -> list[int]:
    return [few for few in FEW if number % few == 0]

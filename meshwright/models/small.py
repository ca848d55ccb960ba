"""A model's numbers made small: the same structure, and cut alike by any few ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FEW: Final = range(2, 9)
"""Numbers of ranks over which a small number divides exactly where the great one does."""
HEAD: Final = 4
"""Features of a head: rotary embedding turns them in pairs."""
ACTIVE: Final = 4
"""Experts that see a token, at most."""
GROUPS: Final = 4
"""Groups of experts, at most."""
STD: Final = 0.2
"""Of first weights: on few features gradients then stand well above what is rounded off."""


def alike(number: int, least: int, multiple: int = 1) -> int:
    """The smallest multiple of `multiple` from `least` on, at most `number`, which the same of `FEW` divide."""
    wanted = _divisors(number)
    first = -(-least // multiple) * multiple
    return next((small for small in range(first, number, multiple) if _divisors(small) == wanted), number)


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
    if "dense_layers" in numbers:
        found["dense_layers"] = min(numbers["dense_layers"], max(found["layers"] - 1, 0))
    if {"heads", "kv_heads"} <= numbers.keys():
        found["kv_heads"] = alike(numbers["kv_heads"], 1)
        found["heads"] = found["kv_heads"] * (numbers["heads"] // numbers["kv_heads"])
    elif "heads" in numbers:
        found["heads"] = alike(numbers["heads"], 1)
    widths = _WIDTHS.keys() & numbers.keys()
    found |= {name: _WIDTHS[name] for name in widths}
    if widths:
        found["dim"] = alike(numbers["dim"], 32)
    elif "heads" in found:
        found["dim"] = found["heads"] * HEAD
    if "experts" in numbers:
        found |= _fewer_experts(numbers)
    if "std" in numbers:
        found["std"] = max(numbers["std"], STD)
    return found


_LEAST: Final[Mapping[str, int]] = {"vocab": 64, "hidden": 32, "expert_hidden": 16, "q_latent": 12, "kv_latent": 10}
_WIDTHS: Final[Mapping[str, int]] = {"head_dim": HEAD, "nope_dim": HEAD, "rope_dim": HEAD, "value_dim": 3 * HEAD // 2}
"""Features of a head and its parts."""


def _fewer_experts(numbers: Mapping[str, Any]) -> dict[str, int]:
    """Few are active, of as many of the groups, in proportion, as before; and as many are not."""
    active = min(numbers["active"], ACTIVE)
    if "groups" not in numbers:
        return {"active": active, "experts": alike(numbers["experts"], 2 * active)}
    groups = max(few for few in range(1, GROUPS + 1) if numbers["groups"] % few == 0)
    active_groups = -(-numbers["active_groups"] * groups // numbers["groups"])
    each = max(2, -(-2 * active // active_groups))
    experts = alike(numbers["experts"], each * groups, groups)
    return {"active": active, "groups": groups, "active_groups": active_groups, "experts": experts}


def _divisors(number: int) -> list[int]:
    return [few for few in FEW if number % few == 0]

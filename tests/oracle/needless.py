"""Refusals that one device would not miss: rules that are stricter than the values of the samples, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_FINITE: Final = "parts of a finite sum may be infinite or no number"
_ROUNDED: Final = "a sum of rounded parts is near the rounded sum, not equal: the collective's dtype says it instead"
_WRITTEN: Final = "what one rank writes would denote the value, but a tensor keeps its type as long as it lives"
_PICKED: Final = "each rank's picks lie end to end, but how many it has, and so the cut, depends on values"
_TORN: Final = "linear, but 0 times infinity is not: where the other operand is a pole no part may stand for nothing"

NEEDLESS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ["isnan", "isinf", "isfinite", "isposinf", "isneginf", "isreal", "nan_to_num", "nansum", "nanmean"], _FINITE
    ),
    **dict.fromkeys(["to", "type_as", "float", "half", "bfloat16", "cfloat"], _ROUNDED),
    **dict.fromkeys(["copy", "fill", "mul_", "_foreach_copy", "__setitem__"], _WRITTEN),
    **dict.fromkeys(["xlogy", "xlog1py"], _TORN),
    "masked_fill": "-inf is the same in every part of a sum; any other number is not, and the rule does not ask which",
    **dict.fromkeys(["masked_select", "__getitem__", "repeat_interleave"], _PICKED),
    "heaviside": "its second operand counts only where the first is exactly 0",
    "expand_as": "a sum in the shape of a tensor that is cut on the axis of the sum: the other's type is not P",
}
"""Op -> why its rule refuses what would have been right."""

MOST: Final = 0.02
"""The share of needless refusals among all draws that is borne."""

"""Ops on lists of tensors, as optimizers make them: each list position is judged by the op's own rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from meshwright.check.operand import Operand
from meshwright.check.refusal import Refused
from meshwright.check.rule import INFER, RULES, Pure

_NAMES: Final = (
    "abs add addcdiv addcmul ceil clamp_max clamp_min copy cos div erf exp expm1 floor lerp lgamma log log10 log1p "
    "log2 maximum minimum mul neg norm pow reciprocal round rsqrt sigmoid sign sin sqrt sub tan tanh trunc zero"
)


def _listwise(name: str) -> Callable[..., tuple[Any, ...]]:
    def infer(first: tuple[Any, ...], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """As the op, for each position of the lists."""

        def pick(value: Any, n: int) -> Any:
            return value[n] if isinstance(value, tuple) else value

        results = []
        for n, one in enumerate(first):
            given = (one, *(pick(value, n) for value in args))
            try:
                results.append(INFER[name](*given, **{name: pick(value, n) for name, value in kwargs.items()}))
            except Refused as refused:
                refused.operands = tuple(value for value in given if isinstance(value, Operand))
                raise
        return tuple(results)

    return infer


for _name in _NAMES.split():
    for _foreach, _writes in ((f"_foreach_{_name}", False), (f"_foreach_{_name}_", True)):
        if hasattr(torch, _foreach):
            RULES[getattr(torch, _foreach)] = Pure(_foreach, _listwise(_name), writes=_writes)

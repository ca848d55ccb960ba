"""How far an outcome is from one device, and what is off first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from meshwright.parity.outcome import KINDS, Outcome

WITHIN: Final = 1e-5
"""Relative, in float32: what another order of summation leaves."""
NORMS: Final[Sequence[float]] = (2, torch.inf)
"""Vector norms: of the whole tensor, and of its largest element."""


@dataclass(frozen=True)
class Off:
    """What differs. kind: loss, grad_norm or one of `KINDS`; name: of the parameter, where it is one; error: relative;
    more: other tensors of that kind that are off."""

    kind: str
    name: str
    error: float
    more: int = 0


def error_of(mine: Tensor, true: Tensor, orders: Sequence[float] = NORMS) -> float:
    """The largest relative error in these vector norms; inf where something is not a number."""
    return max(_error(mine, true, order) for order in orders)


def _error(mine: Tensor, true: Tensor, order: float) -> float:
    size = torch.linalg.vector_norm(true, order)
    found = float(torch.linalg.vector_norm(mine - true, order) / size.clamp(min=1e-30))
    return found if math.isfinite(found) else math.inf


def largest_error(mine: Outcome, true: Outcome) -> float:
    """Of loss, norm and every tensor."""
    return max(_errors(mine, true))


def first_off(mine: Outcome, true: Outcome, within: float = WITHIN) -> list[Off]:
    """What is off: the loss, then of the first kind that is the parameter nearest to the fault; empty if nothing is.

    A wrong backward spoils what lies before it, so where the loss is right that is the last parameter of the model that
    is off; where it is wrong, the first.
    """
    found = []
    losses = {part.loss for part in mine.parts} or {mine.loss}
    worst = max(_relative(loss, true.loss) for loss in losses)
    if worst >= within or len(losses) > 1:
        found.append(Off("loss", "", worst))
    for kind in KINDS:
        names = [name for name in getattr(true, kind) if _is_off(mine, true, kind, name, within)]
        if names:
            name = names[0 if found else -1]
            return [*found, Off(kind, name, _tensor_error(mine, true, kind, name), len(names) - 1)]
    norms = {part.grad_norm for part in mine.parts} or {mine.grad_norm}
    worst = max(_relative(norm, true.grad_norm) for norm in norms)
    if not found and (worst >= within or len(norms) > 1):
        found.append(Off("grad_norm", "", worst))
    return found


def _is_off(mine: Outcome, true: Outcome, kind: str, name: str, within: float) -> bool:
    return (kind, name) in mine.apart or _tensor_error(mine, true, kind, name) >= within


def _tensor_error(mine: Outcome, true: Outcome, kind: str, name: str) -> float:
    """inf for what one device has and no rank of the layout, as the gradient of what is not trained there."""
    values = getattr(mine, kind).get(name)
    return math.inf if values is None else error_of(values, getattr(true, kind)[name])


def _errors(mine: Outcome, true: Outcome) -> list[float]:
    numbers = [_relative(getattr(mine, kind), getattr(true, kind)) for kind in ("loss", "grad_norm")]
    tensors = [_tensor_error(mine, true, kind, name) for kind in KINDS for name in getattr(true, kind)]
    return [*numbers, *tensors]


def _relative(mine: float, true: float) -> float:
    found = abs(mine - true) / max(abs(true), 1e-30)
    return found if math.isfinite(found) else math.inf

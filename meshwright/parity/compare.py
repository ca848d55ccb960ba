"""How far an outcome is from one device, and what is off first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from meshwright.parity.outcome import Outcome

WITHIN: Final = 1e-5
"""Relative, in float32: what another order of summation leaves."""
ORDERS: Final[Mapping[str, Sequence[float]]] = {
    "weights": (2, torch.inf),
    "grads": (2, torch.inf),
    "updated": (2, torch.inf),
    "means": (2, torch.inf),
    "squares": (2, torch.inf),
}
"""Vector norms by kind: of the whole tensor, and of its largest element."""


@dataclass(frozen=True)
class Off:
    """What differs. kind: loss, grad_norm or one of `KINDS`; name: of the parameter, where it is one; error: relative;
    more: other tensors of that kind that are off."""

    kind: str
    name: str
    error: float
    more: int = 0


def error_of(mine: Tensor, true: Tensor, orders: Sequence[float] = (2, torch.inf)) -> float:
    """The largest relative error in these vector norms; inf where something is not a number."""
    return max(_error(mine, true, order) for order in orders)


def _error(mine: Tensor, true: Tensor, order: float) -> float:
    size = torch.linalg.vector_norm(true, order)
    found = float(torch.linalg.vector_norm(mine - true, order) / size.clamp(min=1e-30))
    return found if math.isfinite(found) else math.inf


def largest_error(mine: Outcome, true: Outcome) -> float:
    """Of loss, norm and every tensor."""
    return max(error for _, _, error in _errors(mine, true))


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
    for kind, orders in ORDERS.items():
        mine_all, true_all = getattr(mine, kind), getattr(true, kind)
        names = [name for name in true_all if name in mine_all and _is_off(mine, true, kind, name, orders, within)]
        names += [name for name in true_all if name not in mine_all]
        if names:
            name = names[0 if found else -1]
            wrong = error_of(mine_all[name], true_all[name], orders) if name in mine_all else math.inf
            return [*found, Off(kind, name, wrong, len(names) - 1)]
    norms = {part.grad_norm for part in mine.parts} or {mine.grad_norm}
    worst = max(_relative(norm, true.grad_norm) for norm in norms)
    if not found and (worst >= within or len(norms) > 1):
        found.append(Off("grad_norm", "", worst))
    return found


def _is_off(mine: Outcome, true: Outcome, kind: str, name: str, orders: Sequence[float], within: float) -> bool:
    if (kind, name) in mine.apart:
        return True
    return error_of(getattr(mine, kind)[name], getattr(true, kind)[name], orders) >= within


def _errors(mine: Outcome, true: Outcome) -> list[tuple[str, str, float]]:
    numbers = [(kind, "", _relative(getattr(mine, kind), getattr(true, kind))) for kind in ("loss", "grad_norm")]
    tensors = [
        (kind, name, error_of(getattr(mine, kind)[name], value, orders))
        for kind, orders in ORDERS.items()
        for name, value in getattr(true, kind).items()
    ]
    return [*numbers, *tensors]


def _relative(mine: float, true: float) -> float:
    found = abs(mine - true) / max(abs(true), 1e-30)
    return found if math.isfinite(found) else math.inf

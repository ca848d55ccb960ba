"""What a wrong tensor looks like: the likely law by which it differs from the right one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Final

import torch
from torch import Tensor

FITS: Final = 1e-3
"""A law holds where it leaves less than this share of a tensor unexplained: far above rounding, far below a fault."""


@dataclass(frozen=True)
class Law:
    """words: for a person; ratio: of the tensor to the right one, where one number is all that differs."""

    words: str
    ratio: float | None = None


@dataclass(frozen=True)
class Held:
    """What one rank holds of a tensor. at: axis -> its place on it; place: where `values` stand in the full tensor."""

    at: Mapping[str, int]
    place: tuple[slice, ...]
    values: Tensor


def scaled(mine: Tensor, true: Tensor, factors: Mapping[str, int]) -> Law | None:
    """One number for all elements. factors: what it may be made of, name -> value."""
    size, there = float(true.norm()), float(mine.norm())
    if not math.isfinite(there):
        return Law("not a number")
    if size == 0:
        return Law("not zero, as it should be") if there else None
    if there <= FITS * size:
        return Law("no gradient: not trained", 0.0)
    ratio = float((mine.double() * true.double()).sum() / true.double().square().sum())
    if _left(mine, ratio * true.double()) > FITS or abs(ratio - 1) < FITS:
        return None
    return Law(words(ratio, factors), ratio)


def words(ratio: float, factors: Mapping[str, int]) -> str:
    """A ratio as the simplest product of factors that it is, or several where several are: `x tp / cp`."""
    sign = "sign, " if ratio < 0 else ""
    size = abs(ratio)
    if abs(size - 1) < FITS:
        return "sign"
    powers = sorted(product((0, 1, -1), repeat=len(factors)), key=lambda power: [-abs(p) for p in power])
    for many in range(1, len(factors) + 1):
        fits = [
            _product(power, factors)
            for power in powers
            if sum(map(abs, power)) == many
            and abs(math.prod(value**p for value, p in zip(factors.values(), power, strict=True)) / size - 1) < FITS
        ]
        if fits:
            return sign + " or ".join(fits)
    return f"{sign}x {size:.4g}"


def _product(power: Sequence[int], factors: Mapping[str, int]) -> str:
    """`x tp / cp`"""
    signs = {1: "x", -1: "/"}
    named = sorted(zip(power, factors, strict=True), key=lambda pair: -pair[0])
    return " ".join(f"{signs[p]} {name}" for p, name in named if p)


def unsummed(held: Sequence[Held], true: Tensor) -> Law | None:
    """Ranks hold different values for the same elements: is their sum, over some axes, the right tensor?"""
    axes = [axis for axis in held[0].at if len({each.at[axis] for each in held}) > 1]
    for many in range(1, len(axes) + 1):
        for chosen in combinations(axes, many):
            if _sums_to(held, chosen, true):
                return Law(f"one rank's part only: the sum over {' and '.join(chosen)} is missing")
    return None


def _sums_to(held: Sequence[Held], over: Sequence[str], true: Tensor) -> bool:
    """Whether, in each group of ranks that differ in their places on `over` alone, the values sum to the right ones."""
    groups: dict[object, list[Held]] = {}
    for each in held:
        others = tuple(place for axis, place in each.at.items() if axis not in over)
        spans = tuple((cut.start, cut.stop) for cut in each.place)
        groups.setdefault((others, spans), []).append(each)
    if all(len(group) == 1 for group in groups.values()):
        return False
    sums = [(group[0].place, torch.stack([each.values for each in group]).sum(0)) for group in groups.values()]
    return all(_left(total, true[place]) <= FITS for place, total in sums)


def of_some_ranks(held: Sequence[Held], true: Tensor) -> Law | None:
    """Right on some ranks, wrong on the others."""
    wrong = [number for number, each in enumerate(held) if _left(each.values, true[each.place]) > FITS]
    if not wrong or len(wrong) == len(held):
        return None
    return Law(f"off on {'rank' if len(wrong) == 1 else 'ranks'} {', '.join(map(str, wrong))} alone")


def weighted(mine: Tensor, parts: Sequence[Tensor], one: str, many: str) -> Law | None:
    """A sum of the right parts, some of which are missing or count otherwise.

    one, many: what a part is called, `micro-batch`. Parts of zero say nothing.
    """
    told = [number for number, part in enumerate(parts) if float(part.norm()) > 0]
    if len(told) < 2:
        return None
    columns = torch.stack([parts[number].double().flatten() for number in told], 1)
    solved = torch.linalg.lstsq(columns, mine.double().flatten().unsqueeze(1), driver="gelsd").solution.flatten()
    if _left(mine, (columns @ solved).view(mine.shape)) > FITS:
        return None
    weights = dict(zip(told, solved.tolist(), strict=True))
    kept = [number for number, weight in weights.items() if abs(weight) > FITS]
    if len(kept) < len(told) and all(abs(weights[number] - 1) < FITS for number in kept):
        called, numbers = one if len(kept) == 1 else many, ", ".join(str(number + 1) for number in kept)
        return Law(f"the part of {called} {numbers} only")
    each = ", ".join(f"x {weight:.3g}" for weight in weights.values())
    return Law(f"each {one} counts otherwise: {each}; its own divisor, where the global one belongs?")


def _left(mine: Tensor, explained: Tensor) -> float:
    """The share of a tensor that is not explained."""
    rest = float((mine.double() - explained.double()).norm())
    size = max(float(mine.double().norm()), float(explained.double().norm()))
    return rest / size if size else 0.0

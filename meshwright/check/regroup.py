"""Which dims of a viewed tensor are which dims of the view: runs of dims that hold the same positions."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.check.operand import Shape

Run = tuple[range, range]
"""Dims before, and the dims after that hold the same positions."""


def runs(before: Shape, after: Shape) -> list[Run] | None:
    """The smallest runs that match, in order; None where the two shapes hold different numbers of positions.

    `runs((4, 6), (4, 2, 3)) == [(0, 0), (1, 1 and 2)]`. Dims of length 1 belong to the run before them, if any.
    """
    found: list[Run] = []
    i = j = 0
    while i < len(before) or j < len(after):
        start_i, start_j = i, j
        mine, i = _take(before, i)
        theirs, j = _take(after, j)
        while mine != theirs:
            if mine < theirs and i < len(before):
                mine, i = mine * before[i], i + 1
            elif theirs < mine and j < len(after):
                theirs, j = theirs * after[j], j + 1
            else:
                return None
        found.append((range(start_i, i), range(start_j, j)))
    return found


def _take(shape: Shape, dim: int) -> tuple[int, int]:
    return (shape[dim], dim + 1) if dim < len(shape) else (1, dim)


def resolve(sizes: Sequence[int], total: int) -> Shape | None:
    """`sizes` with the one that is -1 worked out; None where nothing fits."""
    known = 1
    for size in sizes:
        known *= size if size != -1 else 1
    if -1 not in sizes:
        return tuple(sizes) if known == total else None
    if known == 0 or total % known:
        return None
    return tuple(total // known if size == -1 else size for size in sizes)

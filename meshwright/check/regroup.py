"""Which factors of a tensor make up which dims of a view of it."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.check.factors import Factor
from meshwright.check.operand import Shape


class Unfit(Exception):
    """A dim of a view cuts across a factor. length: what is left of the dim where the factor begins."""

    def __init__(self, factor: Factor, length: int) -> None:
        super().__init__()
        self.factor, self.length = factor, length


def regrouped(dims: Sequence[Sequence[Factor]], shape: Sequence[int], sizes: Sequence[int]) -> list[list[Factor]]:
    """The factors of each dim of a view in which a rank holds `shape`, of a tensor with the factors `dims`.

    A sharded factor that is split is sharded in its outermost part. Where a rank's part of several dims has one
    position, what is cut over the ranks stays with the dim whose length it fits; `sizes` is as the author wrote the
    view, where -1 says which dim that is.

    Errors: `Unfit`.
    """
    factors = [factor for dim in dims for factor in dim if factor.length != 1]
    starts = {id(dim[0]) for dim in dims}
    try:
        return _regrouped(factors, starts, shape, sizes)
    except Unfit:
        return _regrouped(_coarse(factors), starts, shape, sizes)


def _coarse(factors: Sequence[Factor]) -> list[Factor]:
    """With each factor goes what lies behind it and is not sharded: together they are one run of positions."""
    found: list[Factor] = []
    for factor in factors:
        if found and not factor.cut:
            last = found.pop()
            factor = Factor(last.length * factor.length, last.axes, last.local * factor.local)
        found.append(factor)
    return found


def _regrouped(
    factors: Sequence[Factor], starts: set[int], shape: Sequence[int], sizes: Sequence[int]
) -> list[list[Factor]]:
    rest = list(factors)
    found: list[list[Factor]] = []
    for place, wanted in enumerate(shape):
        mine: list[Factor] = []
        if wanted == 1:
            _take_one(rest, mine, shape, place, sizes)
        left = wanted
        while left > 1:
            factor = rest.pop(0) if rest else Factor(1, (), 0)
            if factor.local == 0:
                raise Unfit(factor, left)
            if left % factor.local == 0:
                mine.append(factor)
                left //= factor.local
            elif factor.local % left == 0:
                outer = Factor(left * (factor.length // factor.local), factor.axes, left)
                rest.insert(0, Factor(factor.local // left, (), factor.local // left))
                mine.append(outer)
                left = 1
            else:
                raise Unfit(factor, left)
        while mine and rest and rest[0].local == 1 and _belongs_here(rest, shape[place + 1 :], starts):
            mine.append(rest.pop(0))
        found.append(mine or [Factor(1, (), 1)])
    if rest:
        found[-1] += rest
    return found


def _take_one(rest: list[Factor], mine: list[Factor], shape: Sequence[int], place: int, sizes: Sequence[int]) -> None:
    """A dim of the view of which a rank holds one position: new, or a factor that is cut into single positions."""
    if not rest:
        return
    if rest[0].local == 1:
        mine.append(rest.pop(0))
        return
    inside = any(length != 1 for length in shape[:place])
    split = sizes[place] == -1 or (inside and -1 not in sizes[place:])
    following = next((length for length in shape[place + 1 :] if length != 1), 1)
    if rest[0].cut and split and following < rest[0].length and following == rest[0].local:
        ranks = rest[0].length // rest[0].local
        mine.append(Factor(ranks, rest[0].axes, 1))
        rest[0] = Factor(rest[0].local, (), rest[0].local)


def _run(rest: Sequence[Factor]) -> int:
    return next((n for n, factor in enumerate(rest) if factor.local != 1), len(rest))


def _belongs_here(rest: Sequence[Factor], following: Sequence[int], starts: set[int]) -> bool:
    """A factor of one position belongs to the dim before it where the next dim is exactly what comes behind it."""
    if not following:
        return True
    if following[0] == 1:
        return False
    if id(rest[0]) not in starts:
        return True  # it came with what is there
    behind = rest[_run(rest) :]
    return bool(behind) and id(behind[0]) in starts and behind[0].local == following[0]


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

"""Which factors of a tensor make up which dims of a view of it."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.check.factors import Factor
from meshwright.check.operand import Shape
from meshwright.comm.number import Number


class Unfit(Exception):
    """A dim of a view cuts across a factor. length: what is left of the dim where the factor begins."""

    def __init__(self, factor: Factor, length: int) -> None:
        super().__init__()
        self.factor, self.length = factor, length


def regrouped(dims: Sequence[Sequence[Factor]], shape: Sequence[int], sizes: Sequence[int]) -> list[list[Factor]]:
    """The factors of each dim of a view in which a rank holds `shape`, of a tensor with the factors `dims`.

    A sharded factor that is split is sharded in its outermost part. Where a rank's part of a dim has one position it is
    not seen in the lengths to which dim of the view it goes: to the one that is -1 in `sizes`, as the author wrote the
    view, or whose length comes of it; else it goes with what follows it.

    Errors: `Unfit`.
    """
    factors = [factor for dim in dims for factor in dim]
    starts = {id(dim[0]) for dim in dims if dim}
    try:
        return _Regrouping(factors, starts, shape, sizes).dims()
    except Unfit:
        return _Regrouping(_coarse(factors), starts, shape, sizes).dims()


def _coarse(factors: Sequence[Factor]) -> list[Factor]:
    """With each factor goes what lies behind it and is not sharded: together they are one run of positions."""
    found: list[Factor] = []
    for factor in factors:
        if found and not factor.cut:
            last = found.pop()
            factor = Factor(last.length * factor.length, last.axes, last.local * factor.local)
        found.append(factor)
    return found


class _Regrouping:
    """The factors that are left, on the way through the dims of the view."""

    def __init__(self, factors: Sequence[Factor], starts: set[int], shape: Sequence[int], sizes: Sequence[int]) -> None:
        self.rest, self.starts, self.shape, self.sizes = list(factors), starts, shape, sizes

    def dims(self) -> list[list[Factor]]:
        found = [self._dim(place) for place in range(len(self.shape))]
        if self.rest and any(factor.local != 1 for factor in self.rest):
            raise Unfit(self.rest[0], 1)
        if found:
            found[-1] += self.rest
        return [[factor for factor in dim if factor.length != 1 or factor.cut] or [Factor(1, (), 1)] for dim in found]

    def _dim(self, place: int) -> list[Factor]:
        mine = self._one(place) if self.shape[place] == 1 else self._many(self.shape[place])
        while mine and self.rest and self.rest[0].local == 1 and self._belongs_here(place):
            mine.append(self.rest.pop(0))
        return mine

    def _one(self, place: int) -> list[Factor]:
        """A dim of which a rank holds one position: one that was there, a cut that leaves one, or a new one."""
        if not self.rest:
            return []
        first = self.rest[0]
        if first.local == 1:
            return [self.rest.pop(0)] if not first.cut or self._means(place, first) else []
        before = any(length != 1 for length in self.shape[:place])
        split = self.sizes[place] == -1 or (before and -1 not in self.sizes[place:])
        following = next((length for length in self.shape[place + 1 :] if length != 1), 1)
        if first.cut and split and following < first.length and following == first.local:
            self.rest[0] = Factor(first.local, (), first.local)
            return [Factor(first.length // first.local, first.axes, 1)]
        return []

    def _means(self, place: int, factor: Factor) -> bool:
        """Whether a length of one is what is left of the factor: where another is -1, that one takes what is cut."""
        size = self.sizes[place]
        if size == -1 or -1 not in self.sizes:
            return True
        return isinstance(size, Number) and any(axis in size.origin.axes for axis, _ in factor.axes)

    def _many(self, wanted: int) -> list[Factor]:
        mine: list[Factor] = []
        left = wanted
        while left > 1:
            factor = self.rest.pop(0) if self.rest else Factor(1, (), 0)
            if factor.local == 0:
                raise Unfit(factor, left)
            if left % factor.local == 0:
                mine.append(factor)
                left //= factor.local
            elif factor.local % left == 0:
                mine.append(Factor(left * (factor.length // factor.local), factor.axes, left))
                self.rest.insert(0, Factor(factor.local // left, (), factor.local // left))
                left = 1
            else:
                raise Unfit(factor, left)
        return mine

    def _belongs_here(self, place: int) -> bool:
        """Whether a factor of which a rank holds one position goes with the dim before it."""
        first, following = self.rest[0], self.shape[place + 1 :]
        if not following:
            return True
        if following[0] == 1:
            return False
        if id(first) not in self.starts:
            return True  # it came with what is there
        size = self.sizes[place]
        if isinstance(size, Number):
            return any(axis in size.origin.axes for axis, _ in first.axes)
        if size != -1:
            return False
        behind = next((factor for factor in self.rest if factor.local != 1), None)
        return behind is not None and id(behind) in self.starts and behind.local == following[0]


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

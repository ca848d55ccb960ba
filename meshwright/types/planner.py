"""From any layout to any layout: the steps, in an order in which each is possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import I, R, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.transition import Op, Step, step


@cache
def plan(src: SpmdLayout, dst: SpmdLayout) -> tuple[Step, ...]:
    """The steps from `src` to `dst`, the ones that shrink the tensor first.

    Where several axes shard one dim, only the innermost can be gathered and a new one becomes the innermost; an
    axis that stands inside one that must go is gathered with it and cut again.

    Errors: `SpmdTypeError` where the axes differ or a type cannot be reached.
    """
    if set(src) != set(dst):
        raise SpmdTypeError(
            Problem(
                where="",
                what=f"{src} -> {dst} names different axes",
                why="a change of layout says for each axis where it comes from and where it goes",
                fix=f"name {', '.join(sorted(set(src) ^ set(dst)))} on both sides or on neither",
            )
        )
    _demand_dims_in_place(src, dst)
    steps: list[Step] = []
    current = src
    while current is not dst:
        change = _next(current, dst)
        steps.append(change)
        current = current.replace(**{change.axis: change.dst})
    return tuple(steps)


def _demand_dims_in_place(src: SpmdLayout, dst: SpmdLayout) -> None:
    """The list that V stands for is stacked along a new dim 0 where it becomes whole: no other axis may count dims."""
    stacked = [axis for axis in src if src[axis] is not dst[axis] and V in (src[axis], dst[axis])]
    counting = [axis for axis in src if axis not in stacked and axis in src.sharded + dst.sharded]
    if not stacked or len(stacked) + len(counting) == 1:
        return
    axis, other = (*stacked, *counting)[:2]
    raise SpmdTypeError(
        Problem(
            where=f"axis {axis!r}",
            what=f"{src[axis]!r} -> {dst[axis]!r} moves the dims of {src[other]!r} -> {dst[other]!r} on {other!r}",
            why="V is a list: where it becomes whole it is stacked along a new dim 0, and the other dims move",
            fix=f"redistribute(x, {axis!r}, src={src[axis]!r}, dst={dst[axis]!r}) on its own",
        )
    )


_COST = {op: cost for cost, op in enumerate((Op.REDUCE_SCATTER, Op.SLICE, Op.RETAG, Op.MASK, Op.ALL_TO_ALL))}


def _next(current: SpmdLayout, dst: SpmdLayout) -> Step:
    """The cheapest step that is possible now and brings `current` nearer to `dst`."""
    possible = []
    for axis in current:
        if current[axis] is not dst[axis]:
            change = step(axis, current[axis], dst[axis])
            assert change is not None
            if _leaves(current, change) and _joins(current, dst, change):
                possible.append(change)
    if possible:
        return min(possible, key=lambda change: _COST.get(change.op, len(_COST)))
    return _unwind(current, dst)


def _leaves(current: SpmdLayout, change: Step) -> bool:
    """The axis is not sharded, or is the innermost of its dim."""
    return not isinstance(change.src, Shard) or current.sharding(change.src.dim)[-1] == change.axis


def _joins(current: SpmdLayout, dst: SpmdLayout, change: Step) -> bool:
    """The axis becomes the innermost of its new dim, where `dst` has it right behind those already there."""
    if not isinstance(change.dst, Shard):
        return True
    there = current.sharding(change.dst.dim)
    return dst.sharding(change.dst.dim)[: len(there) + 1] == (*there, change.axis)


def _unwind(current: SpmdLayout, dst: SpmdLayout) -> Step:
    """Gather the innermost axis of a dim whose order is not a beginning of the order in `dst`."""
    for axis in reversed(tuple(current)):
        kind = current[axis]
        if isinstance(kind, Shard):
            there = current.sharding(kind.dim)
            if there[-1] == axis and dst.sharding(kind.dim)[: len(there)] != there:
                whole: SpmdType = I if dst[axis] is I else R
                change = step(axis, kind, whole)
                assert change is not None
                return change
    raise AssertionError(f"no step from {current} towards {dst}")


@dataclass(frozen=True, init=False)
class Transition:
    """A declared change of layout. src, dst: `SpmdLayout`, or {axis: type} that becomes one."""

    src: SpmdLayout
    dst: SpmdLayout

    def __init__(self, src: Mapping[str, SpmdType], dst: Mapping[str, SpmdType]) -> None:
        object.__setattr__(self, "src", SpmdLayout(src))
        object.__setattr__(self, "dst", SpmdLayout(dst))

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that carry it out; none where source and destination are the same."""
        return plan(self.src, self.dst)

    def __str__(self) -> str:
        return f"{self.src} -> {self.dst}"

"""From any layout to any layout: the plan with the fewest bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, overload

from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import DEGREES, FLAG, demand, optional
from meshwright.types.kinds import SpmdType, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.notation import render_layout
from meshwright.types.search import Search, moved, resized
from meshwright.types.transition import Step, step

UNKNOWN: Final = 2
"""Ranks of an axis of which the number is not known."""


@dataclass(frozen=True)
class Plan(Sequence[Step]):
    """The steps from `src` to `dst`, in order. `print(plan)` shows them with the bytes that each moves.

    degree: axis -> number of ranks that the plan was made for; axes that are not in it have one.
    """

    src: SpmdLayout
    dst: SpmdLayout
    degree: Mapping[str, int]
    steps: tuple[Step, ...]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    @overload
    def __getitem__(self, place: int) -> Step: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, place: int | slice) -> Step | tuple[Step, ...]:
        return self.steps[place]

    def __hash__(self) -> int:
        return hash((self.src, self.dst, self.steps))

    def moved(self, local: int) -> tuple[int, ...]:
        """The bytes that each step moves per rank, where a rank holds `local` bytes of `src`."""
        found = []
        for change in self.steps:
            ranks = self.ranks(change)
            found.append(moved(change.op, ranks, local))
            local = resized(change.op, ranks, local)
        return tuple(found)

    def bytes(self, shape: Sequence[int], itemsize: int) -> int:
        """The bytes that a rank moves for a tensor of global `shape` with `itemsize` bytes per element."""
        return sum(self.moved(self.local_bytes(shape, itemsize)))

    def local_bytes(self, shape: Sequence[int], itemsize: int) -> int:
        """The bytes of a tensor of global `shape` that a rank holds in `src`; of a list, V, one entry."""
        return math.prod(shape) * itemsize // math.prod(self.degree.get(axis, 1) for axis in self.src.sharded)

    def ranks(self, change: Step) -> int:
        """The number of ranks that take part in a step."""
        return math.prod(self.degree.get(axis, 1) for axis in change.axes)

    def table(self, shape: Sequence[int], itemsize: int) -> str:
        """The steps, one a line, with the bytes that each moves per rank."""
        local = self.local_bytes(shape, itemsize)
        return self._table([f"{count:,} B" for count in self.moved(local)], f"{self.bytes(shape, itemsize):,} B")

    def __str__(self) -> str:
        unit = math.prod(self.degree.values()) ** 2
        shares = [f"{count / unit:.4g} x" for count in self.moved(unit)]
        return self._table(shares, f"{sum(self.moved(unit)) / unit:.4g} x", " (x: the bytes that a rank holds before)")

    def _table(self, amounts: Sequence[str], total: str, unit: str = "") -> str:
        head = f"{render_layout(self.src)} -> {render_layout(self.dst)}"
        if not self.steps:
            return f"{head}: nothing to do"
        rows = [
            (change.op.value, ",".join(change.axes), str(self.ranks(change)), _types(change), amount)
            for change, amount in zip(self.steps, amounts, strict=True)
        ]
        rows.insert(0, ("step", "over", "ranks", "types", "bytes"))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([head, *lines, f"in all {total}{unit}"])


def _types(change: Step) -> str:
    return str(change).partition(": ")[2].removesuffix(f" {change.op.value}")


_plans: dict[tuple[object, ...], Plan] = {}


def plan(
    src: Mapping[str, SpmdType],
    dst: Mapping[str, SpmdType],
    degree: Mapping[str, int] | None = None,
    *,
    expert_mode: bool = False,
) -> Plan:
    """The steps from `src` to `dst` that move the fewest bytes per rank in forward; of those, the fewest collectives.

    degree: axis -> number of ranks, the outermost axis first; axes that are not in it have one. Without it every axis
    counts as having as many as any other. Neighbours that make the same change of type, on the same dim in order,
    are one collective over the flattened axis. What backward moves follows from the steps and does not decide.

    Bytes of a collective over n ranks with b bytes each: all_gather (n-1) b; reduce_scatter and all_to_all
    (n-1)/n b; all_reduce 2 (n-1)/n b. Other steps move none.

    Errors: `SpmdTypeError` where the axes differ or a type cannot be reached.
    """
    try:
        return _plans[src, dst, None if degree is None else tuple(degree.items()), expert_mode]
    except (KeyError, TypeError, AttributeError):  # not planned before, plain dicts, or none of these
        return _planned(SpmdLayout(src), SpmdLayout(dst), degree, expert_mode)


def _planned(src: SpmdLayout, dst: SpmdLayout, degree: Mapping[str, int] | None, expert_mode: bool) -> Plan:
    try:
        key = (src, dst, None if degree is None else tuple(degree.items()), expert_mode)
        found = _plans.get(key)
    except (TypeError, AttributeError):
        found = None
    if found is None:
        demand("plan", "degree", degree, optional(DEGREES))
        demand("plan", "expert_mode", expert_mode, FLAG)
        _demand_same_axes(src, dst)
        for axis in src:
            step(axis, src[axis], dst[axis], expert_mode=expert_mode)
        _demand_dims_in_place(src, dst)
        degree = dict.fromkeys(src, UNKNOWN) if degree is None else {a: n for a, n in degree.items() if a in src}
        found = Plan(src, dst, degree, Search(src, dst, degree, expert_mode).steps())
        found = _plans.setdefault(key, found)
    return found


def _demand_same_axes(src: SpmdLayout, dst: SpmdLayout) -> None:
    if set(src) != set(dst):
        raise SpmdTypeError(
            Problem(
                where="",
                what=f"{src} -> {dst} names different axes",
                why="a change of layout says for each axis where it comes from and where it goes",
                fix=f"name {', '.join(sorted(set(src) ^ set(dst)))} on both sides or on neither",
                code=Code.NO_STEP,
            )
        )


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
            code=Code.NO_STEP,
        )
    )


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
        """The steps that carry it out, whatever the degrees; none where source and destination are the same."""
        return self.plan().steps

    def plan(self, degree: Mapping[str, int] | None = None) -> Plan:
        """The plan for a mesh with these degrees."""
        return plan(self.src, self.dst, degree)

    def __str__(self) -> str:
        return f"{self.src} -> {self.dst}"

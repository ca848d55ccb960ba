"""The explicit, differentiable collectives on plain tensors. Axes are names, looked up in the current mesh.

Each takes the type before and after; the pair fixes the step, and the step its backward (`types/transition.py`).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from meshwright.comm.scope import axis as _axis
from meshwright.comm.steps import BoundStep
from meshwright.comm.transport import Transport
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import SpmdType
from meshwright.types.transition import Op, Step, claim, step


def redistribute(x: Tensor, axis: str, *, src: SpmdType, dst: SpmdType, expert: bool = False) -> Tensor:
    """`x` of type `src` on `axis` as the same tensor of type `dst`, by whatever step leads there.

    Errors: `SpmdTypeError` where no step leads there.
    """
    return _apply(x, axis, src, dst, None, expert)


def all_gather(x: Tensor, axis: str, *, src: SpmdType, dst: SpmdType) -> Tensor:
    """S(i) or V -> R or I. Backward: to R a reduce_scatter, to I a slice."""
    return _apply(x, axis, src, dst, Op.ALL_GATHER)


def all_reduce(x: Tensor, axis: str, *, src: SpmdType, dst: SpmdType) -> Tensor:
    """P -> R or I, the sum over the ranks. Backward: from R an all_reduce, from I nothing."""
    return _apply(x, axis, src, dst, Op.ALL_REDUCE)


def reduce_scatter(x: Tensor, axis: str, *, src: SpmdType, dst: SpmdType) -> Tensor:
    """P -> S(i) or V, this rank's part of the sum. Backward: an all_gather."""
    return _apply(x, axis, src, dst, Op.REDUCE_SCATTER)


def all_to_all(x: Tensor, axis: str, *, src: SpmdType, dst: SpmdType) -> Tensor:
    """S(i) -> S(j): another dim is sharded. Backward: S(j) -> S(i)."""
    return _apply(x, axis, src, dst, Op.ALL_TO_ALL)


def convert(x: Tensor, axis: str, *, src: SpmdType, dst: SpmdType, expert: bool = False) -> Tensor:
    """The same tensor as another type, by a step that moves nothing between ranks: slice, pad, mask or retag.

    Errors: `SpmdTypeError` where only a collective leads there.
    """
    return _apply(x, axis, src, dst, _QUIET, expert)


def reinterpret(x: Tensor, axis: str, *, src: SpmdType, dst: SpmdType) -> Tensor:
    """The local value read as another type, which changes what it denotes: V -> P, R -> V."""
    group = _axis(axis)
    key = "reinterpret", src, dst
    bound = group.bound.get(key)
    if bound is None:
        bound = group.bound[key] = _bind(claim(axis, src, dst), group)
    return bound(x) if bound else x


_QUIET = "slice, pad, mask or retag"


def _apply(x: Tensor, axis: str, src: SpmdType, dst: SpmdType, op: Op | str | None, expert: bool = False) -> Tensor:
    group = _axis(axis)
    key = op, src, dst, expert
    bound = group.bound.get(key)
    if bound is None:
        change = step(axis, src, dst, expert=expert)
        if change is not None:
            _demand(change, op)
        bound = group.bound[key] = _bind(change, group)
    return bound(x) if bound else x


def _bind(change: Step | None, group: Transport) -> BoundStep | Literal[False]:
    return BoundStep(change, group) if change is not None else False


def _demand(change: Step, op: Op | str | None) -> None:
    """The caller named an operation: the step between the two types is to be that one."""
    fits = op is None or change.op is op or (op is _QUIET and not change.op.communicates)
    if not fits:
        wanted = op.value if isinstance(op, Op) else op
        raise SpmdTypeError(
            Problem(
                where=f"axis {change.axis!r}",
                what=f"{change.src!r} -> {change.dst!r} is no {wanted}: it takes {change.op.value}",
                why="source and destination fix the step",
                fix=f"{_NAMED.get(change.op, 'convert')}(x, {change.axis!r}, src={change.src!r}, dst={change.dst!r})",
            )
        )


_NAMED = {op: op.value for op in Op if op.communicates}

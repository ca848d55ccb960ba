"""The explicit, differentiable collectives on plain tensors. Axes are names, looked up in the current mesh.

Each takes the type before and after; the pair fixes the step, and the step its backward (`types/transition.py`).
"""

from __future__ import annotations

from typing import Final, Literal

from torch import Tensor

from meshwright.comm.declare import assert_type
from meshwright.comm.scope import axis as _axis
from meshwright.comm.steps import BoundStep
from meshwright.comm.transport import Transport
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import I, R, SpmdType
from meshwright.types.transition import CHANGES, Op, claim, demand_types, step


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
    return _apply(x, axis, src, dst, _CLAIM)


_QUIET: Final = "slice, pad, mask or retag"
_CLAIM: Final = "claim"


def _apply(x: Tensor, axis: str, src: SpmdType, dst: SpmdType, op: Op | str | None, expert: bool = False) -> Tensor:
    if not isinstance(x, Tensor):
        raise SpmdTypeError(
            Problem(
                where=f"axis {axis!r}",
                what=f"{x!r} is no tensor",
                why="types are of tensors; a number is the same on every rank",
                fix="torch.tensor(...), or leave the call out",
            )
        )
    group = _axis(axis)
    key = op, src, dst, expert
    bound = group.bound.get(key)
    if bound is None:
        bound = group.bound[key] = _bind(group, src, dst, op, expert)
    return bound(x) if bound else assert_type(x, {axis: src})


def _bind(
    group: Transport, src: SpmdType, dst: SpmdType, op: Op | str | None, expert: bool
) -> BoundStep | Literal[False]:
    demand_types(group.name, src, dst)
    if op is _CLAIM:
        change = claim(group.name, src, dst)
    else:
        if isinstance(op, Op):
            _demand_named(group.name, src, dst, op)
        change = step(group.name, src, dst, expert=expert)
        if change is not None and op is _QUIET and change.op.communicates:
            raise SpmdTypeError(_other_step(group.name, src, dst, _QUIET, change.op))
    return BoundStep(change, group) if change is not None else False


def _demand_named(axis: str, src: SpmdType, dst: SpmdType, op: Op) -> None:
    """The caller named an operation: the step between the two types is to be that one."""
    found = CHANGES.get(f"{src.letter} {dst.letter}")
    if op is Op.ALL_REDUCE and src in (R, I):
        raise SpmdTypeError(
            Problem(
                where=f"axis {axis!r}",
                what=f"{src!r} -> {dst!r} is no all_reduce: x is {src!r}, every rank holds the whole value already",
                why="only in P is a sum over ranks pending; reducing again would count each value once a rank",
                fix="leave the call out" if src is dst else f"leave the call out, or convert x: {src!r} -> {dst!r}",
            )
        )
    if src is dst or (found is not None and found is not op):
        raise SpmdTypeError(_other_step(axis, src, dst, op.value, None if src is dst else found))


def _other_step(axis: str, src: SpmdType, dst: SpmdType, wanted: str, found: Op | None) -> Problem:
    call = found.value if found is not None and found.communicates else "convert"
    return Problem(
        where=f"axis {axis!r}",
        what=f"{src!r} -> {dst!r} is no {wanted}: it takes {found.value if found else 'no step at all'}",
        why="source and destination fix the step",
        fix=f"{call}(x, {axis!r}, src={src!r}, dst={dst!r})" if found else "leave the call out",
    )

"""Stated types, and the steps that change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from meshwright.check import source
from meshwright.check.algebra import agree
from meshwright.check.operand import Operand, whole_shape
from meshwright.check.refusal import Refused, change
from meshwright.check.rule import special
from meshwright.check.tag import Tag, read, typed, write
from meshwright.comm.declare import assert_type
from meshwright.comm.steps import BoundStep
from meshwright.types.kinds import I, P, R, S, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.transition import Op, Step

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck


@special(assert_type)
def stated_type(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Note the type where nothing is known; verify it where something is."""
    return _assert(check, *args, **kwargs)


def _assert(check: TypeCheck, x: Tensor, types: Mapping[str, SpmdType]) -> Tensor:
    stated = SpmdLayout(types)
    tag = read(x)
    for axis, kind in stated.items():
        _ = check.mesh[axis]  # the mesh says which axes there are
        known = tag.layout.get(axis)
        if known is not None and not agree(known, kind, check.operand(x).flows):
            raise Refused(
                f"x is {known!r} on axis {axis!r}, not {kind!r}",
                "a stated type is verified where the type is known",
                f"state {known!r}; or make it {change('x', axis, known, kind)}",
            )
    layout = _merged(tag.layout, stated)
    whole_shape(tuple(x.shape), layout, check.mesh)
    leaf = x.is_leaf and x.requires_grad
    write(x, Tag(layout, owner=tag.owner, stated=tag.stated or source.line()) if leaf else typed(layout, tag.counted))
    return x


def _merged(known: SpmdLayout, stated: SpmdLayout) -> SpmdLayout:
    """All that is known; of axes that shard one dim, the order in which they were stated."""
    for dim in {kind.dim for kind in stated.values() if isinstance(kind, Shard)}:
        both = [axis for axis in stated.sharding(dim) if axis in known]
        if both != [axis for axis in known.sharding(dim) if axis in stated]:
            raise Refused(
                f"dim {dim} of x is cut over ({', '.join(known.sharding(dim))}), not over ({', '.join(both)})",
                "ranks hold different positions of a dim that is cut in another order",
                "state the axes in the order in which the dim is cut",
            )
    return SpmdLayout({**{axis: kind for axis, kind in known.items() if axis not in stated}, **stated})


@special(BoundStep.__call__)
def carried(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """A step: what it starts from is verified, what it leads to is noted."""
    bound, x = args
    step: Step = bound.step
    try:
        tag = _after(step, check.operand(x))
    except Refused as refused:
        refused.call = step.op.value
        raise
    result: Tensor = func(*args, **kwargs)
    write(result, tag)
    return result


def _after(step: Step, operand: Operand) -> Tag:
    known = operand.layout.get(step.axis)
    if known is not None and not agree(known, step.src, operand.flows):
        raise _starts_elsewhere(step, known)
    counted = operand.tag.counted
    if step.is_claim and step.dst is P and step.axis in counted:
        raise _counted(step)
    layout = operand.layout if known is not None else operand.layout.replace(**{step.axis: step.src})
    return typed(after(layout, step), counted - {step.axis})


def _counted(step: Step) -> Refused:
    return Refused(
        f"x is V on axis {step.axis!r} with something added that every rank has alike, R, and V -> P would sum it",
        f"the sum over {step.axis} counts once a rank what is meant once",
        f"claim V -> P first, then add what is R as {change('bias', step.axis, R, P)}; or add it after the sum",
    )


def after(layout: SpmdLayout, step: Step) -> SpmdLayout:
    """The layout after a step from `layout`.

    Errors: `Refused` where the dims of other axes forbid it.
    """
    if isinstance(step.src, Shard) and layout.sharding(step.src.dim)[-1] != step.axis:
        inner = layout.sharding(step.src.dim)[-1]
        raise Refused(
            f"dim {step.src.dim} is cut over ({', '.join(layout.sharding(step.src.dim))}), and {step.axis!r} is not "
            f"the innermost",
            "only the innermost of the axes that cut a dim can leave it",
            f"{change('x', inner, layout[inner], R)} first",
        )
    shift = 0
    if not step.is_claim and V in (step.src, step.dst):
        shift = 1 if step.src is V else -1
    moved: dict[str, SpmdType] = {}
    for axis, kind in layout.items():
        if axis != step.axis and isinstance(kind, Shard) and shift:
            if kind.dim + shift < 0:
                raise Refused(
                    f"{step.src!r} -> V on axis {step.axis!r} takes dim 0 apart, which is {kind!r} on axis {axis!r}",
                    "V is a list with one entry for each rank, along dim 0 where it is whole",
                    f"{change('x', axis, kind, R)} first",
                )
            kind = S(kind.dim + shift, kind.sizes)
        moved[axis] = kind
    return SpmdLayout(moved).replace(**{step.axis: step.dst})


def _starts_elsewhere(step: Step, known: SpmdType) -> Refused:
    reduces = step.op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER)
    if known in (R, I) and reduces:
        why = f"{known!r} is the whole value on every rank: to reduce it would count it once a rank"
        fix = f"leave the call out: nothing is to be reduced on axis {step.axis!r}"
        if step.dst is not known:
            fix += f"; or {change('x', step.axis, known, step.dst)}"
    elif known is step.dst:
        why, fix = f"x is {known!r} already", "leave the call out"
    else:
        why = "the source of a step is what the tensor is"
        fix = change("x", step.axis, known, step.dst)
        if known is V and step.src is P:
            fix = f"{change('x', step.axis, V, P)}, if the sum over ranks of these values is meant, before this call"
        elif known is P and step.src is not P:
            fix = change("x", step.axis, P, step.dst if step.dst is not P else R)
    return Refused(f"x is {known!r} on axis {step.axis!r}, not {step.src!r}, and {step}", why, fix)

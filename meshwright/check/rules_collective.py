"""Stated types, and the steps that change them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from meshwright.check import source
from meshwright.check.algebra import agree
from meshwright.check.factors import Factor, assembled, end_to_end, factored, joined, unsharded
from meshwright.check.forget import varying
from meshwright.check.memory import overwritten
from meshwright.check.mode import STATES
from meshwright.check.operand import Operand, operand, whole_shape
from meshwright.check.refusal import Refused, change, mixed
from meshwright.check.report import Trusted
from meshwright.check.rule import special
from meshwright.check.tag import ASSUMED, UNKNOWN, Tag, held, is_stale, noted, read, typed, write
from meshwright.codes import Code
from meshwright.comm.declare import assert_type, assert_type_like
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


STATES[assert_type] = stated_type


@special(assert_type_like)
def stated_alike(
    check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Tensor:
    """As another tensor is."""
    x, source_, overrides = args
    return _assert(check, x, {**check.operand(source_).layout, **overrides})


def _assert(check: TypeCheck, x: Tensor, types: Mapping[str, SpmdType]) -> Tensor:
    stated = SpmdLayout(types)
    tag = UNKNOWN if is_stale(x) or read(x) is ASSUMED else read(x)
    for axis in stated:
        _ = check.mesh[axis]  # the mesh says which axes there are
    loose = tag is UNKNOWN or (not tag.layout and noted(x).fresh is None)  # else `write` says it of the memory
    if tag is UNKNOWN:
        _demand_held(x, stated)
        write(x, UNKNOWN)
        known = SpmdLayout({})
    elif tag.empty and tag.factors is None:  # nothing yet, or zero: of any type, but for where nothing is said
        known = tag.layout.replace(**{axis: stated[axis] for axis in tag.layout if axis in stated})
    else:
        known = _verified(check, check.operand(x), stated)
        if tag.factors is not None and not set(stated) - set(known):
            return x
    layout = _merged(known, stated)
    whole_shape(tuple(x.shape), layout, check.mesh)
    leaf = x.is_leaf and x.requires_grad
    write(x, Tag(layout, owner=tag.owner, stated=tag.stated or source.line()) if leaf else typed(layout, tag.counted))
    if loose:
        overwritten(x, read(x))
    return x


def _demand_held(x: Tensor, stated: SpmdLayout) -> None:
    """A leaf is what its memory holds, but for R and I, which only its gradient tells apart.

    Errors: `Refused` where something else was written into it by another name.
    """
    if not x.requires_grad or is_stale(x):
        return
    memory = held(x)
    if memory.mixed:
        raise mixed(memory.mixed)
    for axis, kind in memory.layout.items():
        said = stated.get(axis, kind)
        if not agree(kind, said, flows=False) and {kind.letter, said.letter} != {"S", "V"}:
            raise Refused(
                f"the memory of x holds what is {kind!r} on axis {axis!r}, not {said!r}",
                "it was written, or its type stated, by another name of the same memory",
                f"state {kind!r}; or make it {change('x', axis, kind, said)}",
                code=Code.OTHER_TYPE,
            )


def _verified(check: TypeCheck, seen: Operand, stated: SpmdLayout) -> SpmdLayout:
    """What is known of a tensor, with what its author adds: of V, which dim is cut.

    Errors: `Refused` where something else is known.
    """
    known = on_whole_dims(seen, [axis for axis, kind in stated.items() if isinstance(kind, Shard)])
    refined: dict[str, SpmdType] = {}
    for axis, kind in stated.items():
        held = known.get(axis)
        if held is None or agree(held, kind, seen.flows):
            continue
        if held is V and isinstance(kind, Shard):
            refined[axis] = kind
            check.report.trust(check.report.claims, Trusted(source.line(), f"V on axis {axis!r} is {kind!r}"))
        elif isinstance(held, Shard) and kind is V:
            continue
        elif check.local and isinstance(held, Shard) and isinstance(kind, Shard):
            refined[axis] = kind
        else:
            raise Refused(
                f"x is {held!r} on axis {axis!r}, not {kind!r}",
                "a stated type is verified where the type is known",
                f"state {held!r}; or make it {change('x', axis, held, kind)}",
                code=Code.OTHER_TYPE,
            )
    return known.replace(**refined) if refined else known


def on_whole_dims(seen: Operand, axes: list[str]) -> SpmdLayout:
    """The layout on dims.

    Errors: `Refused` where one of `axes` shards a factor of a dim whose parts do not lie end to end.
    """
    if seen.tag.factors is None:
        return seen.layout
    for dim, factors in enumerate(factored(seen.tag.factors, seen.tag.layout, seen.degree, seen.shape)):
        if not end_to_end(factors):
            for axis in axes:
                if any(axis == name for factor in factors for name, _ in factor.axes):
                    raise _strided(axis, dim)
    return seen.layout


def _strided(axis: str, dim: int) -> Refused:
    return Refused(
        f"dim {dim} of x is a product of which axis {axis!r} shards one factor",
        "the parts of such a dim do not lie end to end",
        "unflatten the dim first",
        code=Code.OTHER_SHARDS,
        cut=axis,
    )


def _merged(known: SpmdLayout, stated: SpmdLayout) -> SpmdLayout:
    """All that is known; of axes that shard one dim, the order in which they were stated."""
    if not known:
        return stated
    for dim in {kind.dim for kind in stated.values() if isinstance(kind, Shard)}:
        both = tuple(axis for axis in stated.sharding(dim) if axis in known)
        if both != tuple(axis for axis in known.sharding(dim) if axis in stated):
            raise _stated_in_order(known.sharding(dim), both)
    finer = {
        axis: known[axis] if kind is V and isinstance(known.get(axis), Shard) else kind for axis, kind in stated.items()
    }
    return SpmdLayout({**{axis: kind for axis, kind in known.items() if axis not in stated}, **finer})


def _stated_in_order(known: tuple[str, ...], stated: tuple[str, ...]) -> Refused:
    return Refused(
        f"x is cut over ({', '.join(known)}) and the stated type over ({', '.join(stated)}), outermost first",
        "ranks hold different positions of a dim that is cut in another order",
        f"state the axes of the dim in the order ({', '.join(known)})",
        code=Code.OTHER_SHARDS,
        cut=stated[0],
    )


@special(BoundStep.__call__)
def carried(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """A step: what it starts from is verified, what it leads to is noted."""
    bound, x = args
    step: Step = bound.step
    check.note_call(str(step), (x,))
    seen = _simple(check, check.operand(x))
    while True:
        try:
            tag = _after(check, step, seen, bound.options.dims or (0, 0))
            break
        except Refused as refused:
            refused.call = "reinterpret" if step.is_claim else step.op.value if step.op.communicates else "convert"
            if not check.forgets(refused) or refused.cut is None:
                raise
            known = varying(seen, refused.cut)
            seen = operand(known, seen.shape, seen.flows, seen.dtype, check.mesh, check.degree)
    if step.is_claim and seen.layout.get(step.axis) is not step.dst:
        check.report.trust(
            check.report.claims, Trusted(source.line(), f"{step.src!r} on axis {step.axis!r} is {step.dst!r}")
        )
    result: Tensor = func(*args, **kwargs)
    if result is x and not bound.options.inplace:
        result = x.view_as(x)  # another type of the same memory
    write(result, tag)
    return result


def _simple(check: TypeCheck, seen: Operand) -> Operand:
    """What is seen, without the factors of dims that nothing cuts."""
    if seen.tag.factors is None:
        return seen
    dims = joined(factored(seen.tag.factors, seen.tag.layout, seen.degree, seen.shape))
    layout, factors = assembled(dims, unsharded(seen.tag.layout))
    return check.operand_of(typed(layout, seen.tag.counted, factors), seen.shape, seen)


def _after(check: TypeCheck, step: Step, seen: Operand, dims: tuple[int, int]) -> Tag:
    counted = seen.tag.counted
    layout = seen.tag.layout
    for one in _each(step):
        known = seen.layout.get(one.axis)
        if known is None:
            layout = layout.replace(**{one.axis: one.src})
        elif not _starts(check, one, known, seen):
            raise _starts_elsewhere(one, known)
        elif known is P and one.src is V and one.is_claim:
            return seen.tag  # the sum that is claimed was seen
        if one.is_claim and one.src is V and one.axis in counted:
            raise _counted(one)
    counted -= set(step.axes)
    if seen.tag.factors is not None:
        return _of_factors(step, seen, layout, counted, dims)
    if check.local:
        layout = SpmdLayout({**layout, **{axis: kind for axis, kind in step.before.items() if axis in step.axes}})
        return typed(_moved(step, layout, dims), counted)
    return typed(after(layout, step, dims), counted)


def _starts(check: TypeCheck, step: Step, known: SpmdType, seen: Operand) -> bool:
    """Whether a tensor that is `known` is what the step starts from."""
    if agree(known, step.src, seen.flows):
        return True
    if known is P and step.src is V:
        return step.dst is P if step.is_claim else check.local and _counts(seen)
    if isinstance(known, Shard) and isinstance(step.src, Shard):
        return False  # a cut that is known is another one
    varies = isinstance(known, Shard) or known is V
    return check.local and varies and (isinstance(step.src, Shard) or step.src is V)


def _counts(seen: Operand) -> bool:
    """Whether it holds whole numbers: in a region the parts of such a sum are each rank's counts of its own rows."""
    return not (seen.dtype.is_floating_point or seen.dtype.is_complex)


def _of_factors(step: Step, seen: Operand, layout: SpmdLayout, counted: frozenset[str], lists: tuple[int, int]) -> Tag:
    """A step of a tensor of which some dim is a product of factors. lists: the dim of a list, before and after."""
    assert seen.tag.factors is not None
    dims = factored(seen.tag.factors, layout, seen.degree, seen.shape)
    others = unsharded(layout)
    for one in _each(step):
        axis, degree = one.axis, seen.degree.get(one.axis, 1)
        if one.src is V and one.dst in (R, I, P) and not one.is_claim:
            dims.insert(lists[1], [Factor(degree, (), degree)])
        elif one.dst is V and one.src in (R, I, P) and not any(factor.cut for factor in dims[lists[0]]):
            dims.pop(lists[0])
        elif V in (one.src, one.dst) and not one.is_claim:
            raise Refused(
                f"x has a dim that is a product of factors, and {one} takes its dims apart",
                "V is a list with one entry for each rank, along dim 0 where it is whole",
                "unflatten the dim first",
                code=Code.NO_STEP,
            )
        if isinstance(one.src, Shard):
            dims[one.src.dim] = _leaves(dims[one.src.dim], axis, degree, one.src.dim)
            others[axis] = one.dst
        if isinstance(one.dst, Shard):
            dims[one.dst.dim] = _joins(dims[one.dst.dim], axis, degree, one.dst)
            others.pop(axis, None)
        else:
            others[axis] = one.dst
    moved, factors = assembled(dims, others)
    return typed(moved, counted, factors)


def _leaves(dim: list[Factor], axis: str, degree: int, place: int) -> list[Factor]:
    """The dim when the ranks of an axis are laid end to end: right where nothing before its factor is left."""
    found = []
    before = 1
    for factor in dim:
        if any(axis == name for name, _ in factor.axes):
            if before != 1 or factor.axes[-1][0] != axis:
                raise _strided(axis, place)
            left = factor.axes[:-1]
            factor = Factor(factor.length, left, factor.local * degree if left else factor.length)
        before *= factor.local
        found.append(factor)
    return found


def _joins(dim: list[Factor], axis: str, degree: int, shard: Shard) -> list[Factor]:
    """The dim when each rank of an axis keeps its run of it: a part of the first factor that has any left."""
    at = next((n for n, factor in enumerate(dim) if factor.local > 1), len(dim) - 1)
    factor = dim[at]
    if shard.sizes is not None:
        inner = math.prod(each.length for each in dim[at + 1 :])
        if any(size % inner for size in shard.sizes):
            raise _strided(axis, shard.dim)
        shard = S(shard.dim, tuple(size // inner for size in shard.sizes))
    elif factor.local % degree:
        raise _strided(axis, shard.dim)
    cut = Factor(factor.length, (*factor.axes, (axis, shard)), factor.local // degree)
    return [*dim[:at], cut, *dim[at + 1 :]]


def _each(step: Step) -> list[Step]:
    """What a step over several axes does on each, in the order in which they cut a dim."""
    if len(step.axes) == 1:
        return [step]
    return [Step((axis,), kind, step.after[axis], step.op) for axis, kind in step.before.items()]


def _counted(step: Step) -> Refused:
    return Refused(
        f"x is V on axis {step.axis!r} with something added that every rank has alike, R, and V -> P would sum it",
        f"the sum over {step.axis} counts once a rank what is meant once",
        f"claim V -> P first, then add what is R as {change('bias', step.axis, R, P)}; or add it after the sum",
        code=Code.COUNTED,
    )


def after(layout: SpmdLayout, step: Step, dims: tuple[int, int] = (0, 0)) -> SpmdLayout:
    """The layout after a step from `layout`. dims: where a list is stacked in the whole tensor, before and after.

    Errors: `Refused` where the dims of other axes forbid it.
    """
    for dim in {kind.dim for kind in step.before.values() if isinstance(kind, Shard)}:
        leaving, there = step.before.sharding(dim), layout.sharding(dim)
        if there[-len(leaving) :] == leaving:
            continue
        inner = there[-1]
        raise Refused(
            f"dim {dim} is cut over ({', '.join(there)}), and {step.axis!r} is not the innermost",
            "only the innermost of the axes that cut a dim can leave it",
            f"{change('x', inner, layout[inner], R)} first",
            code=Code.OTHER_SHARDS,
            cut=inner,
        )
    return _moved(step, layout, dims)


def _moved(step: Step, layout: SpmdLayout, dims: tuple[int, int]) -> SpmdLayout:
    goes, comes = (not step.is_claim and kind is V for kind in (step.dst, step.src))
    moved: dict[str, SpmdType] = {}
    for axis, kind in layout.items():
        if axis not in step.axes and isinstance(kind, Shard) and (goes or comes):
            if goes and kind.dim == dims[0]:
                raise Refused(
                    f"{step.src!r} -> V on axis {step.axis!r} takes dim {kind.dim} apart, which is {kind!r} on axis "
                    f"{axis!r}",
                    f"V is a list with one entry for each rank, along dim {kind.dim} where it is whole",
                    f"{change('x', axis, kind, R)} first",
                    code=Code.NO_STEP,
                    cut=axis,
                )
            dim = kind.dim - (goes and kind.dim > dims[0])
            kind = S(dim + (comes and dim >= dims[1]), kind.sizes)
        moved[axis] = kind
    return SpmdLayout(moved).replace(**step.after)


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
        elif known is V and isinstance(step.src, Shard):
            fix = f"assert_type(x, {{{step.axis!r}: {step.src!r}}}) before this call, if the list is that dim cut"
        elif known is P and step.src is not P:
            fix = change("x", step.axis, P, step.dst if step.dst is not P else R)
    return Refused(
        f"x is {known!r} on axis {step.axis!r}, not {step.src!r}, and {step}", why, fix, code=Code.OTHER_TYPE
    )

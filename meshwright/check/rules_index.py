"""Reading and writing by position, along one dim or into a part of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from meshwright.check.algebra import Result, demand_kept, propagate
from meshwright.check.demand import demand_exact, demand_no_value
from meshwright.check.forget import forgotten
from meshwright.check.formula import Formula
from meshwright.check.operand import Operand, Shape
from meshwright.check.refusal import Refused, along_shard, change, no_rule, partial_plus
from meshwright.check.rule import INFER, RULES, pure, special
from meshwright.check.rules_pick import getitem, masked_write, pointed, spelled
from meshwright.check.shared import demand_unshared
from meshwright.check.tag import Fresh, Tag, constant, read, typed, write
from meshwright.check.tag import written as marked
from meshwright.check.term import Factor, Label, Term
from meshwright.codes import Code
from meshwright.types.kinds import I, P, R, Shard, V
from meshwright.types.layout import SpmdLayout

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck


@pure("gather")
def gather(input: Operand, dim: int, index: Operand, *, sparse_grad: bool = False) -> Result:
    """At each position, the place that `index` says along one dim, which is whole; other dims go together."""
    labels = tuple(range(len(input.shape)))
    at, theirs = pointed(input, dim, index)
    terms = (Term("input", input, labels), Term("index", index, theirs))
    value = ((Factor(0), Factor(1, linear=False)),)
    short = [(n, label) for n, label in enumerate(theirs) if n != at and label != n]
    along: dict[Label, str] = dict.fromkeys((at, *(each for both in short for each in both)), "")
    return propagate("gather", terms, value, theirs, along=along)


@pure("take_along_dim")
def take_along_dim(input: Operand, indices: Operand, dim: int | None = None) -> Result:
    """As `gather`, where both have the same dims."""
    if dim is None or len(input.shape) != len(indices.shape):
        raise TypeError("without dim, or indices of other dims")
    return gather(input, dim, indices)


_WRITTEN = Formula.read("input, value: input + value")


@special(torch.Tensor.__setitem__)
def setitem(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What is written into a part of a tensor has the tensor's type; one that was made empty takes it over."""
    target, value = args[0], args[2]
    if read(target).owner is not None and _is_all(args[1]) and isinstance(value, Tensor):
        RULES[torch.Tensor.copy_](check, torch.Tensor.copy_, (target, value), kwargs)
        return None
    index = spelled(args[1])
    check.note_call("__setitem__", args)
    demand_no_value(check, value, "a tensor that it is written into")
    seen: list[Operand] = []
    check.begin()
    given = check.seen_by_rules(index, seen)
    mine, theirs = check.operand(target), check.seen_by_rules(value, seen)
    if not any(operand.layout for operand in (mine, *seen)):
        return check.note_written(func(*args, **kwargs), target, [mine, *seen])
    places = [each for each in seen if each is not theirs]
    _demand_same_places(mine, places)
    written = _written(check, _Write(given, lambda: tuple(target[index].shape)), mine, theirs, places)
    check.demand_unplaced("a write", mine.tag.layout)
    demand_unshared("a write", target)
    result = func(*args, **kwargs)
    for each in seen:
        demand_exact("a write", each, target)
    if mine.tag.fresh is not None:
        write(target, written)
        return result
    marked(target)
    if torch.is_grad_enabled():  # what had no gradient passes one on now, as R or as I
        gained = {axis: kind for axis, kind in written.layout.items() if kind in (R, I)}
        write(target, typed(mine.tag.layout.replace(**gained), mine.tag.counted, mine.tag.factors))
    return result


INFER["__setitem__"] = setitem


def _is_all(index: Any) -> bool:
    """Whether it says all places of all dims."""
    return all(each is Ellipsis or each == slice(None) for each in (index if type(index) is tuple else (index,)))


def _demand_same_places(target: Operand, index: list[Operand]) -> None:
    """What every rank holds alike is written at the same places on every rank.

    Errors: `Refused`.
    """
    for each in index:
        for axis, kind in each.layout.items():
            held = target.layout.get(axis)
            if kind not in (R, I) and held in (R, I, P):
                raise Refused(
                    f"on axis {axis!r} a write goes to places that are {kind!r}, into a tensor that is {held!r}",
                    "each rank would write at other places, and the ranks would hold different values",
                    change("index", axis, kind, R) + ", and all values with it",
                    code=Code.WRITE,
                )


class _Write(NamedTuple):
    """Where a write goes. places: the index as rules see it; shape: of what it says, on this rank, if it fits there."""

    places: Any
    shape: Callable[[], Shape]


def _written(check: TypeCheck, at: _Write, target: Operand, value: Any, index: list[Operand]) -> Tag:
    """What stands in the target after the write; a buffer that had no type takes it over from the value.

    Errors: `Refused` where the types do not fit.
    """
    if target.tag.fresh is None:
        return _into_part(check, at, target, value)
    if not target.layout.cut:
        return _into_fresh(check, target, value, index)
    taken = _taken_over(check, target, [("value", value), *_named(index)])
    _into_part(check, at, check.operand_of(typed(taken), target.shape, target), value)
    alone = all(each.tag.fresh is not None for each in (value, *index) if isinstance(each, Operand))
    return constant(target.layout, Fresh.CONSTANT) if alone else typed(taken)


def _into_part(check: TypeCheck, at: _Write, target: Operand, value: Any) -> Tag:
    """What a write makes of the part of a target that has a type: in a region places are those of a rank.

    Errors: `Refused` where it would not keep its type.
    """
    given, shape = at
    while True:
        try:
            written = masked_write(target, given, value)
            if written is not None:
                demand_kept("a write", target, written)
            else:
                region = getitem(target, given)
                part = check.operand_of(region.tag, shape(), target)
                written = _WRITTEN.infer("a write", (part, value), {})
                demand_kept("a write", part, written)
            return written.tag
        except TypeError as error:
            raise no_rule(f"a write by {error}") from None
        except Refused as refused:
            if not check.forgets(refused):
                raise
            target, given, value = (
                forgotten(each, refused, check.mesh, check.degree) for each in (target, given, value)
            )


def _taken_over(check: TypeCheck, target: Operand, given: list[tuple[str, Any]]) -> SpmdLayout:
    """The layout of a buffer that is cut as a dim is: on other axes that of what is written into it.

    Errors: `Refused` where it is not known which dim of the buffer is cut, and where the buffer holds something that
    would be counted with each part of a sum.
    """
    types = dict(target.layout)
    for name, each in given:
        for axis, kind in each.layout.items() if isinstance(each, Operand) else ():
            if axis in target.layout:
                continue
            if isinstance(kind, Shard):
                raise along_shard(axis, name, kind, "a write into a part of an untyped buffer", _STATE)
            if kind is P and not target.tag.empty:
                raise partial_plus(axis, name, "the buffer", None)
            types[axis] = V if kind is V else types.get(axis, kind)
    return SpmdLayout(types)


def _into_fresh(check: TypeCheck, target: Operand, value: Any, index: list[Operand]) -> Tag:
    """What a buffer is that took no type yet, once `value` stands at the places `index`.

    Errors: `Refused` where a dim is sharded whose place in the buffer is not known, and where the buffer holds
    something that would be counted with each part of a sum.
    """
    terms = [Term(name, _of_no_dims(check, name, each)) for name, each in (("value", value), *_named(index))]
    product = (Factor(0), *(Factor(n, linear=False) for n in range(1, len(terms))))
    held = Term("the buffer", check.operand_of(target.tag, (), target))
    sums = isinstance(value, Operand) and value.partial and target.tag.fresh is not Fresh.EMPTY
    found = propagate("a write", (*terms, held), (product, (Factor(len(terms)),)) if sums else (product,), ())
    own = dict.fromkeys(check.axes_of_lengths(), V)
    return typed(found.tag.layout.replace(**{**target.layout, **own}), found.tag.counted)


def _named(index: list[Operand]) -> list[tuple[str, Operand]]:
    return [(f"index {n}" if n else "index", each) for n, each in enumerate(index)]


def _of_no_dims(check: TypeCheck, name: str, x: Any) -> Any:
    """`x` without its dims; where cuts are not followed what is sharded is V.

    Errors: `Refused` where they are.
    """
    if not isinstance(x, Operand):
        return x
    for axis, kind in x.layout.items():
        if isinstance(kind, Shard) and not check.local:
            raise along_shard(axis, name, kind, "a write into a part of an untyped buffer", _STATE)
    if x.tag.fresh is not None:
        return check.operand_of(x.tag, (), x)
    layout = SpmdLayout({axis: V if isinstance(kind, Shard) else kind for axis, kind in x.layout.items()})
    return check.operand_of(typed(layout, x.tag.counted), (), x)


_STATE = "state the buffer's type first: assert_type(buffer, {axis: type})"

"""Ops that repeat positions, or spread them over dims of other tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.refusal import not_counted, placed_by
from meshwright.check.rule import pure
from meshwright.check.rules_dims import demand_even, relabelled
from meshwright.check.rules_view import expand, flat, from_front, spread
from meshwright.check.tag import typed
from meshwright.check.term import Factor, Label, Labels, Sum, Term, opaque
from meshwright.comm.number import Number, is_length
from meshwright.types.kinds import R, Shard
from meshwright.types.layout import SpmdLayout


@pure("expand_as")
def expand_as(input: Operand, other: Operand) -> Result:
    """In the shape of another tensor, and cut as it is."""
    count = len(other.shape)
    labels = [tuple(range(count - len(one.shape), count)) for one in (input, other)]
    return _shaped("expand_as", 0, (input, other), labels, tuple(range(count)))


@pure("broadcast_to")
def broadcast_to(input: Operand, size: Any) -> Result:
    """As `expand`."""
    return expand(input, size)


@pure("broadcast_tensors")
def broadcast_tensors(*tensors: Any) -> tuple[Result, ...]:
    """Each tensor in the shape of all."""
    given: Sequence[Operand] = tensors[0] if isinstance(tensors[0], tuple) else tensors
    count = max(len(one.shape) for one in given)
    labels = [tuple(range(count - len(one.shape), count)) for one in given]
    return tuple(_shaped("broadcast_tensors", n, given, labels, tuple(range(count))) for n in range(len(given)))


@pure("meshgrid")
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Result, ...]:
    """Each vector along its own dim, spread over those of the others."""
    given: Sequence[Operand] = tensors[0] if isinstance(tensors[0], tuple) else tensors
    out = list(range(len(given)))
    if indexing == "xy" and len(out) > 1:
        out[:2] = 1, 0
    labels = [(n,) if one.shape else () for n, one in enumerate(given)]
    return tuple(_shaped("meshgrid", n, given, labels, tuple(out)) for n in range(len(given)))


def _shaped(op: str, number: int, given: Sequence[Operand], labels: Sequence[Labels], out: Labels) -> Result:
    """One tensor in a shape that others decide: of those it matters only how they are cut."""
    terms = [Term(f"tensors[{n}]", one if n == number else _cut_alone(one), labels[n]) for n, one in enumerate(given)]
    return propagate(op, terms, (tuple(Factor(n, linear=n == number) for n in range(len(terms))),), out)


def _cut_alone(one: Operand) -> Operand:
    def kinds(layout: SpmdLayout) -> SpmdLayout:
        return SpmdLayout({axis: kind if isinstance(kind, Shard) else R for axis, kind in layout.items()})

    if one.tag.fresh is not None:
        return one
    tag = typed(kinds(one.tag.layout), factors=one.tag.factors)
    return replace(one, tag=tag, layout=kinds(one.layout), flows=False)


@pure("repeat", "tile")
def repeat(input: Operand, *sizes: Any, dims: Any = None) -> Result:
    """Copies end to end along dims, which are whole where there is more than one; new dims stand in front; linear."""
    times = flat(sizes if dims is None else (dims,))
    count = max(len(times), len(input.shape))
    times = (*(1,) * (count - len(times)), *times)
    labels = tuple(range(count - len(input.shape), count))
    whole = (*(1,) * (count - len(input.shape)), *input.whole)
    changed = [dim for dim in range(count) if times[dim] != 1 or isinstance(times[dim], Number) or dim not in labels]
    lengths: dict[Label, int] = {dim: whole[dim] * times[dim] for dim in changed}
    result = relabelled("repeat", input, labels, tuple(range(count)), changed, lengths)
    for dim in changed:
        result = _as_often("repeat", input, result, dim, whole[dim], times[dim])
    return result


def _as_often(op: str, input: Operand, result: Result, dim: int, length: int, times: int) -> Result:
    """Copies of one position, as many as a rank has positions of a dim that is sharded: they are cut like it.

    Errors: `Refused` where more than one position is repeated so often.
    """
    if not is_length(times):
        return result
    if length != 1 or result.tag.factors is not None:
        raise placed_by(times, op)
    return spread(input, result, dim, times)


@pure("repeat_interleave")
def repeat_interleave(
    input: Operand, repeats: int | Operand | None = None, dim: int | None = None, *, output_size: Any = None
) -> Result:
    """Each position several times, side by side; linear. A sharded dim stays so where all are repeated as often."""
    if repeats is None:  # torch takes the counts alone, and repeats the places
        terms = [Term("repeats", input, ("place",))]
        return _counted(terms, opaque(), "place", ("copies",), output_size)
    if dim is None and len(input.shape) != 1:
        raise TypeError("without dim")
    at = from_front(dim or 0, len(input.shape))
    if isinstance(repeats, Operand):
        own = tuple(range(len(input.shape)))
        terms = [Term("input", input, own), Term("repeats", repeats, (at,) * len(repeats.shape))]
        value = ((Factor(0), Factor(1, linear=False)),)
        return _counted(terms, value, at, (*own[:at], "copies", *own[at + 1 :]), output_size)
    demand_even("repeat_interleave", input, at)
    labels = tuple(range(len(input.shape)))
    lengths: dict[Label, int] = {at: input.whole[at] * repeats}
    result = relabelled("repeat_interleave", input, labels, labels, (), lengths)
    return _as_often("repeat_interleave", input, result, at, input.whole[at], repeats)


def demand_counts(op: str, name: str, counts: Operand) -> None:
    """`counts`, which say how many positions there are of something, are no sum over ranks.

    Errors: `Refused`; in a region, where each rank has positions of its own, they are read as its own.
    """
    for axis in counts.layout.partial:
        raise not_counted(axis, name, op)


def _counted(terms: Sequence[Term], value: Sum, at: Label, out: Labels, size: Any) -> Result:
    """Each position of a dim, which is whole, as often as a tensor says; how many come out is said or unknown."""
    repeats = terms[-1].given
    assert isinstance(repeats, Operand)
    demand_counts("repeat_interleave", "repeats", repeats)
    length = size if isinstance(size, int) else 0
    one = propagate("repeat_interleave", terms, value, out, along={at: ""}, lengths={"copies": length})
    if isinstance(size, int):
        return one
    if one.tag.factors is not None and one.tag.layout.sharded:
        raise TypeError("counts, of a tensor of which a flattened dim is sharded, without output_size")
    return Result(typed(one.tag.layout, one.tag.counted), None)

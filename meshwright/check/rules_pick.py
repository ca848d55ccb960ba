"""Indexing by tensors: of places, one for each of several dims, or of yes and no."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, Final

import torch

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import FULL, Cut, Operand, on_dims
from meshwright.check.refusal import placed_by
from meshwright.check.rule import Spelled, pure, special
from meshwright.check.rules_view import moved
from meshwright.check.tag import CONSTANT, Fresh, typed, write
from meshwright.check.term import Factor, Label, Labels, Sum, Term
from meshwright.comm.number import Number, is_length

_AHEAD = "take the positions before the dim is cut"
MASKED: Final[Sum] = ((Factor(0), Factor(1, linear=False)), (Factor(2), Factor(1, linear=False)))


@pure("__getitem__")
def getitem(input: Operand, index: Any) -> Result:
    """`:` keeps a dim as it is; what picks positions wants it whole."""
    items = _meant(input, _spelled_out(input, index if type(index) is tuple else (index,)))
    placed = [n for n, item in enumerate(items) if isinstance(item, Cut) and _ends(item)]
    if placed:
        return _own_parts(input, items, placed)
    if all(not isinstance(item, Operand) for item in items):
        return _sliced(input, items)
    around = [each for item in items for each in _place_of(item)]
    kept = input if all(item == FULL for item in around) else _operand(input, around)
    at, place = [], 0
    for item in items:
        if isinstance(item, Operand):
            at.append(place)
            place += len(item.shape) if item.dtype is torch.bool else 1
        elif item is None or isinstance(item, Cut):
            place += 1
    tensors = [item for item in items if isinstance(item, Operand)]
    if any(item.dtype is torch.bool for item in tensors):
        return _by_mask(kept, at, tensors)
    return _by_places(kept, at, tensors)


def spelled(index: Any) -> Any:
    """An index with a tensor for each list of places."""
    if type(index) is list:
        return _listed(index)
    if type(index) is tuple and list in map(type, index):
        return tuple([_listed(each) if type(each) is list else each for each in index])
    return index


def _listed(places: list[Any]) -> Any:
    if not places or any(type(each) is not int for each in places):
        return places
    made = torch.tensor(places)
    write(made, CONSTANT)
    return made


special(torch.Tensor.__getitem__)(Spelled("__getitem__", getitem, spell=lambda args: (args[0], spelled(args[1]))))


@pure("index")
def index(input: Operand, indices: tuple[Any, ...]) -> Result:
    """As `input[...]`, with None for a dim that is kept."""
    return getitem(input, tuple(FULL if each is None else each for each in indices))


@pure("slice")
def slice_(input: Operand, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Result:
    """As `input[start:end:step]` of one dim, which is whole."""
    at = dim % max(len(input.shape), 1)
    cut = Cut(start, end, step)
    whole = start in (None, 0) and end in (None, sys.maxsize) and step == 1
    return _sliced(input, [FULL if n != at or whole else cut for n in range(len(input.shape))])


def _spelled_out(input: Operand, index: tuple[Any, ...]) -> list[Any]:
    """One item for each dim, a mask for as many as it has, and None for each new one."""
    if any(type(item) in (tuple, bool) for item in index):
        raise TypeError("an index that is a list or a bool")
    for item in index:
        if isinstance(item, Operand) and (item.dtype is torch.uint8 or (item.dtype is torch.bool and not item.shape)):
            raise TypeError("an index that is bytes, or one yes or no")
    given = sum(len(_place_of(item)) for item in index if item is not None and item is not Ellipsis)
    rest = [FULL] * (len(input.shape) - given)
    if Ellipsis not in [item for item in index if not isinstance(item, Operand)]:
        return [*index, *rest]
    at = next(n for n, item in enumerate(index) if item is Ellipsis)
    return [*index[:at], *rest, *index[at + 1 :]]


def _ends(cut: Cut) -> list[Operand]:
    """The ends of a slice that are another number on each rank."""
    return [end for end in cut[:3] if isinstance(end, Operand)]


def _own_parts(input: Operand, items: list[Any], placed: list[int]) -> Result:
    """Slices from a place of each rank's own, of dims that are whole: positions that are V, where they were R.

    Errors: `Refused` where the input is cut there; `TypeError` where a tensor is an index beside them.
    """
    if any(isinstance(item, Operand) for item in items):
        raise TypeError("a slice at a rank's own place, beside a tensor of places")
    kept = _operand(input, [FULL if n in placed else item for n, item in enumerate(items)])
    dims = [n for n, item in enumerate(items) if item is None or isinstance(item, Cut)]
    labels: Labels = tuple(range(len(kept.shape)))
    terms = [Term("input", kept, labels)]
    lengths: dict[Label, int] = {}
    along: dict[Label, str] = {}
    for n in placed:
        at = dims.index(n)
        terms += [Term("index", end, ()) for end in _ends(items[n])]
        own = Cut(*[end.length if isinstance(end, Operand) else end for end in items[n][:3]])
        lengths["part", at], along[at] = own.length(kept.shape[at]), _AHEAD
    out = tuple(("part", label) if ("part", label) in lengths else label for label in labels)
    value = ((Factor(0), *(Factor(n, linear=False) for n in range(1, len(terms)))),)
    return propagate("indexing", terms, value, out, along=along, lengths=lengths)


def at_place(op: str, input: Operand, dim: int, place: Operand, length: int | None) -> Result:
    """From a place of each rank's own so many positions of a dim, which is whole; None: one, without its dim."""
    labels: Labels = tuple(range(len(input.shape)))
    at = dim % max(len(labels), 1)
    out = tuple(("part", at) if label == at else label for label in labels if label != at or length is not None)
    terms = (Term("input", input, labels), Term("index", place, ()))
    lengths: dict[Label, int] = {("part", at): length or 1}
    return propagate(op, terms, MASKED[:1], out, along={at: _AHEAD}, lengths=lengths)


def _meant(input: Operand, items: list[Any]) -> list[Any]:
    """The items, with `:` for what ends at the local length of the very dim.

    Errors: `Refused` where a local length says which places are taken: one device would take others.
    """
    found, dim = [], 0
    for item in items:
        if isinstance(item, Cut) and _is_full(item, input.whole[dim]):
            item = FULL
        ends = item[:3] if isinstance(item, Cut) else (item,)
        for end in ends:
            if is_length(end):
                if not (ends == (ends[0] or None, end, None) and ends_at(input, dim, end)):
                    raise placed_by(end, "indexing")
                item = FULL
        found.append(item)
        dim += 0 if item is None else len(_place_of(item))
    return found


def _is_full(cut: Cut, length: int) -> bool:
    """Whether a slice takes all of so many positions, in order."""
    plain = all(type(end) in (int, type(None)) for end in cut[:3])
    return plain and range(length)[slice(*cut[:3])] == range(length)


def ends_at(input: Operand, dim: int, length: Number) -> bool:
    """Whether it is the length of a dim of the input, on a rank as on one device."""
    return (
        length.origin.share
        and length.plain == input.shape[dim]
        and length.origin.axes == set(input.layout.sharding(dim))
    )


def _place_of(item: Any) -> list[Any]:
    """What stands for an item while the others are taken: a tensor keeps the dims that it picks from."""
    if isinstance(item, Operand):
        return [FULL] * (len(item.shape) if item.dtype is torch.bool else 1)
    return [item]


def _sliced(input: Operand, items: list[Any]) -> Result:
    places: dict[int, int] = {}
    whole: list[int] = []
    dim = 0
    for item in items:
        if item is None:
            whole.append(1)
            continue
        if isinstance(item, Cut):
            if item == FULL or not input.layout.sharding(dim):
                places[dim] = len(whole)
            whole.append(input.whole[dim] if item == FULL else item.length(input.whole[dim]))
        dim += 1
    return moved("indexing", input, places, tuple(whole), _AHEAD)


def _operand(input: Operand, items: list[Any]) -> Operand:
    """What is left of the input after all that is no tensor was taken."""
    result = _sliced(input, items)
    assert result.whole is not None
    shape: list[int] = []
    dim = 0
    for item in items:
        if item is None:
            shape.append(1)
            continue
        if isinstance(item, Cut):
            shape.append(item.length(input.shape[dim]))
        dim += 1
    tag = result.tag
    layout = tag.layout if tag.factors is None else on_dims(tag.layout, tag.factors)
    return Operand(tag, tuple(shape), result.whole, input.flows, input.dtype, layout, input.degree)


def _by_places(input: Operand, at: list[int], tensors: list[Operand]) -> Result:
    """One tensor of places for each of some dims, which are whole; the tensors are spread over each other."""
    count = max(len(each.shape) for each in tensors)
    picked = tuple(("picked", n) for n in range(count))
    own: dict[Label, Label] = {dim: picked[place] for dim, place in own_places(input, at, tensors).items()}
    labels = tuple(own.get(dim, dim) for dim in range(len(input.shape)))
    rest = [(dim, each) for dim, each in zip(at, tensors, strict=True) if dim not in own]
    terms = [Term("input", input, labels)]
    terms += [Term("index", each, picked[count - len(each.shape) :]) for _, each in rest]
    first = at[0] if at == list(range(at[0], at[0] + len(at))) else 0  # apart, what is picked stands in front
    others = [dim for dim in range(len(input.shape)) if dim not in at]
    before = sum(dim < first for dim in others)
    out = (*others[:before], *picked, *others[before:])
    value = ((Factor(0), *(Factor(n, linear=False) for n in range(1, len(terms)))),)
    along: dict[Label, str] = {dim: _AHEAD for dim, _ in rest}
    return propagate("indexing", terms, value, out, along=along)


def own_places(input: Operand, at: Sequence[int], tensors: Sequence[Operand]) -> dict[int, int]:
    """Of the dims that are picked from by one tensor of places each, those that are cut and of which all places that a
    rank holds are taken, in order -> along which dim of what is picked, from its end.
    """
    found: dict[int, int] = {}
    for dim, index in zip(at, tensors, strict=True):
        along = [place for place, length in enumerate(index.shape) if length != 1] or [0]
        place = along[0] - len(index.shape)
        all_of_it = len(along) == 1 and math.prod(index.shape) == input.shape[dim]
        counted = index.tag.fresh is Fresh.PLACES and bool(input.layout.sharding(dim))
        if counted and all_of_it and place not in found.values():  # of two dims, together, it would be a diagonal
            found[dim] = place
    return found


def _by_mask(input: Operand, at: list[int], tensors: list[Operand]) -> Result:
    """What a mask says yes to, of dims that are whole; how many depends on values."""
    if len(tensors) > 1:
        raise TypeError("a mask beside other tensors")
    (place,), (mask,) = at, tensors
    labels = tuple(range(len(input.shape)))
    masked = labels[place : place + len(mask.shape)]
    terms = (Term("input", input, labels), Term("index", mask, masked))
    value = ((Factor(0), Factor(1, linear=False)),)
    out = (*labels[:place], "picked", *labels[place + len(masked) :])
    along: dict[Label, str] = dict.fromkeys(masked, "masked_fill or where, which keep the dims")
    one = propagate("indexing", terms, value, out, along=along, lengths={"picked": 0})
    if one.tag.factors is not None and one.tag.layout.sharded:
        raise TypeError("a mask, of a tensor of which a flattened dim is sharded")
    return Result(typed(one.tag.layout, one.tag.counted), None)


def masked_write(input: Operand, index: Any, value: Any, how: Sum = MASKED) -> Result | None:
    """`input[mask] = value` where the value has no dim of what the mask picks; None: it is another write.

    how: made of the input, the mask and the value.
    """
    items = index if type(index) is tuple else (index,)
    if len(items) != 1 or not isinstance(items[0], Operand) or items[0].dtype is not torch.bool:
        return None
    labels = tuple(range(len(input.shape)))
    dims = len(value.shape) if isinstance(value, Operand) else 0
    if dims > len(labels) - len(items[0].shape) or not items[0].shape:
        return None
    terms = (
        Term("input", input, labels),
        Term("index", items[0], labels[: len(items[0].shape)]),
        Term("value", value, labels[len(labels) - dims :]),
    )
    return propagate("a write", terms, how, labels)


def pointed(input: Operand, dim: int, index: Operand) -> tuple[int, Labels]:
    """The dim, and the labels of an index with places of it: its own where it is shorter in another dim."""
    count = len(input.shape)
    at = dim % max(count, 1)
    if len(index.shape) != count:
        raise TypeError("an index that has other dims")
    mine = input.shape if input.tag.even else input.whole
    theirs = index.shape if input.tag.even else index.whole
    alike = [one == other for one, other in zip(mine, theirs, strict=True)]
    return at, tuple("picked" if n == at else n if alike[n] else ("short", n) for n in range(count))


@pure("index_select")
def index_select(input: Operand, dim: int, index: Operand) -> Result:
    """The places `index` of one dim, which is whole."""
    return _by_places(input, [dim % max(len(input.shape), 1)], [index])

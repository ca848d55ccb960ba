"""Writing by position: what stands at some places of one dim, which is whole, is replaced or added to.

A sum of what is written over places that are sharded is P: each rank adds what it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.rule import pure
from meshwright.check.rules_pick import MASKED, masked_write, own_places, pointed
from meshwright.check.rules_view import from_front
from meshwright.check.term import Factor, Label, Labels, Sum, Term

_SUMMED: Sum = ((Factor(0),), (Factor(2), Factor(1, linear=False)))
_PLACED: Sum = ((Factor(0), Factor(1, linear=False)), (Factor(2), Factor(1, linear=False)))
_ADDED: Sum = ((Factor(0),), (Factor(2), Factor(1, linear=False)))
_CHOSEN: Sum = ((Factor(0, linear=False), Factor(1, linear=False), Factor(2, linear=False)),)


def _written(
    op: str,
    input: Operand,
    dims: set[int],
    index: tuple[Operand, Labels],
    src: tuple[Any, Labels],
    value: Sum,
    whole: Iterable[Label] = (),
) -> Result:
    """dims: those that places are of. What is written adds up over labels that the input has not, or is whole there.

    whole: labels that are so in any case.
    """
    labels = tuple(range(len(input.shape)))
    terms = (Term("input", input, labels), Term("index", *index), Term("src", *src))
    along: dict[Label, str] = dict.fromkeys((*dims, *whole), "")
    if value is not _SUMMED:
        along |= dict.fromkeys((label for label in index[1] if label not in labels), "")
    return propagate(op, terms, value, labels, along=along)


def _at(input: Operand, dim: int) -> tuple[int, Labels]:
    """The dim, and the labels of an index that has all dims of the input."""
    at = from_front(dim, len(input.shape))
    return at, tuple("picked" if each == at else each for each in range(len(input.shape)))


def _scattered(op: str, input: Operand, dim: int, index: Operand, src: Any, value: Sum) -> Result:
    """Places `index` of one dim; along a dim in which the index is shorter it means the first positions."""
    at, labels = pointed(input, dim, index)
    short = {n for n, label in enumerate(labels) if n != at and label != n}
    theirs: Labels = ()
    longer: set[Label] = set()
    if isinstance(src, Operand) and src.shape:
        fits = [src.tag.even or mine == its for mine, its in zip(src.whole, index.whole, strict=True)]
        theirs = tuple(label if fits[n] else ("rest", n) for n, label in enumerate(labels))
        longer = {label for n, label in enumerate(labels) if not fits[n]}  # the first positions of it are meant
    apart = [label for label in (*labels, *theirs) if isinstance(label, tuple) or label in longer]
    return _written(op, input, {at, *short}, (index, labels), (src, theirs), value, apart)


@pure("scatter")
def scatter(input: Operand, dim: int, index: Operand, src: Any = None, *, value: Any = None) -> Result:
    """Places `index` of one dim take `src`, or a number; other dims go together."""
    return _scattered("scatter", input, dim, index, value if src is None else src, _PLACED)


@pure("scatter_add")
def scatter_add(input: Operand, dim: int, index: Operand, src: Operand) -> Result:
    """`src` is added at the places `index` of one dim; linear in both."""
    return _scattered("scatter_add", input, dim, index, src, _SUMMED)


@pure("scatter_reduce")
def scatter_reduce(
    input: Operand, dim: int, index: Operand, src: Operand, reduce: str, *, include_self: bool = True
) -> Result:
    """`src` goes into the places `index` of one dim; a sum is linear in both."""
    value = _SUMMED if reduce == "sum" and include_self else _PLACED if reduce in ("sum", "mean") else _CHOSEN
    return _scattered("scatter_reduce", input, dim, index, src, value)


@pure("index_add")
def index_add(input: Operand, dim: int, index: Operand, source: Operand, *, alpha: Any = 1) -> Result:
    """Slices of `source` are added at the places `index`[n] of one dim; linear in both."""
    at, labels = _at(input, dim)
    return _written("index_add", input, {at}, (index, ("picked",)), (source, labels), _SUMMED)


@pure("index_copy")
def index_copy(input: Operand, dim: int, index: Operand, source: Operand) -> Result:
    """Slices of `source` replace the places `index`[n] of one dim."""
    at, labels = _at(input, dim)
    return _written("index_copy", input, {at}, (index, ("picked",)), (source, labels), _PLACED)


@pure("index_reduce")
def index_reduce(
    input: Operand, dim: int, index: Operand, source: Operand, reduce: str, *, include_self: bool = True
) -> Result:
    """Slices of `source` go into the places `index`[n] of one dim; a mean is linear in both."""
    at, labels = _at(input, dim)
    value = _PLACED if reduce == "mean" else _CHOSEN
    return _written("index_reduce", input, {at}, (index, ("picked",)), (source, labels), value)


@pure("index_fill")
def index_fill(input: Operand, dim: int, index: Operand, value: Any) -> Result:
    """The places `index`[n] of one dim take a number."""
    at, _ = _at(input, dim)
    return _written("index_fill", input, {at}, (index, ("picked",)), (value, ()), _PLACED)


@pure("index_put")
def index_put(input: Operand, indices: tuple[Any, ...], values: Operand, accumulate: bool = False) -> Result:
    """Places of the first dims, by one tensor of whole numbers for each or by a mask, take `values` or are added to."""
    masked = masked_write(input, indices, values, _ADDED if accumulate else MASKED)
    if masked is not None:
        return masked
    if not all(isinstance(index, Operand) and index.dtype.is_signed for index in indices):
        raise TypeError("an index that is a mask beside others, of several values, or that leaves a dim out")
    count = len(indices)
    picked = tuple(("picked", n) for n in range(max(len(index.shape) for index in indices)))
    places = (*picked, *range(count, len(input.shape)))
    shared = places[len(places) - len(values.shape) :]
    own = {dim: picked[place] for dim, place in own_places(input, range(count), indices).items()}
    labels = tuple(own.get(dim, dim) for dim in range(len(input.shape)))
    terms = [Term("input", input, labels), Term("values", values, shared)]
    terms += [
        Term(f"index {n}", index, picked[len(picked) - len(index.shape) :])
        for n, index in enumerate(indices)
        if n not in own
    ]
    chosen = [Factor(n, linear=False) for n in range(2, len(terms))]
    needed = [*labels[:count], *([] if accumulate else picked)]
    along: dict[Label, str] = {label: "" for label in needed if label not in own.values()}
    value = ((Factor(0), *(() if accumulate else chosen)), (Factor(1), *chosen))
    return propagate("index_put", terms, value, labels, along=along)


@pure("take")
def take(input: Operand, index: Operand) -> Result:
    """Places of all dims as one, which are whole; linear."""
    labels = tuple(("place", dim) for dim in range(len(input.shape)))
    picked = tuple(range(len(index.shape)))
    value = ((Factor(0), Factor(1, linear=False)),)
    along: dict[Label, str] = dict.fromkeys(labels, "")
    return propagate("take", (Term("input", input, labels), Term("index", index, picked)), value, picked, along=along)


@pure("masked_select")
def masked_select(input: Operand, mask: Operand) -> Result:
    """All that a mask picks, of dims that are whole; how many depends on values."""
    count = max(len(input.shape), len(mask.shape))
    terms = [Term(name, x, tuple(range(count - len(x.shape), count))) for name, x in (("input", input), ("mask", mask))]
    value = ((Factor(0), Factor(1, linear=False)),)
    along: dict[Label, str] = dict.fromkeys(range(count), "")
    one = propagate("masked_select", terms, value, ("picked",), along=along, lengths={"picked": 0})
    return Result(one.tag, None)


@pure("masked_scatter")
def masked_scatter(input: Operand, mask: Operand, source: Operand) -> Result:
    """What a mask picks takes the first values of `source`: all dims are whole."""
    labels = tuple(range(len(input.shape)))
    theirs = tuple(("source", dim) for dim in range(len(source.shape)))
    terms = (
        Term("input", input, labels),
        Term("mask", mask, labels[len(labels) - len(mask.shape) :]),
        Term("source", source, theirs),
    )
    along: dict[Label, str] = dict.fromkeys((*labels, *theirs), "")
    return propagate("masked_scatter", terms, _PLACED, labels, along=along)


def _replaced(op: str, input: Operand, src: Operand, dims: set[int], theirs: Labels) -> Result:
    labels = tuple(range(len(input.shape)))
    terms = (Term("input", input, labels), Term("src", src, theirs))
    along: dict[Label, str] = dict.fromkeys((*dims, *(label for label in theirs if label not in labels)), "")
    return propagate(op, terms, ((Factor(0),), (Factor(1),)), labels, along=along)


@pure("select_scatter")
def select_scatter(input: Operand, src: Operand, dim: int, index: int) -> Result:
    """One position of a dim, which is whole, takes `src`; linear in both."""
    at = from_front(dim, len(input.shape))
    return _replaced("select_scatter", input, src, {at}, tuple(n for n in range(len(input.shape)) if n != at))


@pure("slice_scatter")
def slice_scatter(
    input: Operand, src: Operand, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Result:
    """Some positions of a dim, which is whole, take `src`; linear in both."""
    at, theirs = _at(input, dim)
    return _replaced("slice_scatter", input, src, {at}, theirs)


@pure("diagonal_scatter")
def diagonal_scatter(input: Operand, src: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Result:
    """The diagonal of two dims, which are whole, takes `src`; linear in both."""
    both = {from_front(dim, len(input.shape)) for dim in (dim1, dim2)}
    theirs = (*(n for n in range(len(input.shape)) if n not in both), "diagonal")
    return _replaced("diagonal_scatter", input, src, both, theirs)

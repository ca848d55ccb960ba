"""Short names for pieces of tensors, for tensors end to end, and for turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.own_parts import cut_like, of_rank
from meshwright.check.rule import pure
from meshwright.check.rules_dims import relabelled
from meshwright.check.rules_pieces import cat, flip, split, stack
from meshwright.check.rules_view import from_front
from meshwright.check.term import Factor, Label, Term


@pure("tensor_split")
def tensor_split(input: Operand, indices_or_sections: Any, dim: int = 0) -> tuple[Result, ...]:
    """Pieces of one dim, which is whole."""
    length = input.whole[from_front(dim, len(input.shape))]
    if isinstance(indices_or_sections, int):
        count = indices_or_sections
        sizes = [length // count + (n < length % count) for n in range(count)]
    elif isinstance(indices_or_sections, tuple):
        ends = [min(end, length) for end in (*indices_or_sections, length)]
        sizes = [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    else:
        raise TypeError("a tensor of places")
    return split(input, sizes, dim)


@pure("hsplit")
def hsplit(input: Operand, indices_or_sections: Any) -> tuple[Result, ...]:
    """Pieces of the second dim, or of the only one, which is whole."""
    return tensor_split(input, indices_or_sections, min(1, len(input.shape) - 1))


@pure("vsplit")
def vsplit(input: Operand, indices_or_sections: Any) -> tuple[Result, ...]:
    """Pieces of the first dim, which is whole."""
    return tensor_split(input, indices_or_sections, 0)


@pure("hstack")
def hstack(tensors: tuple[Operand, ...]) -> Result:
    """End to end along the second dim, or the only one."""
    return cat(tensors, min(1, len(tensors[0].shape) - 1))


@pure("vstack", "row_stack")
def vstack(tensors: tuple[Operand, ...]) -> Result:
    """End to end along the first dim."""
    if len(tensors[0].shape) < 2:
        raise TypeError("vectors: stack says what is meant")
    return cat(tensors, 0)


@pure("block_diag")
def block_diag(*tensors: Operand) -> Result:
    """Matrices along the diagonal of one, which are whole; linear in all."""
    terms = []
    for n, one in enumerate(tensors):
        labels = (("row", n), ("column", n))[2 - len(one.shape) :]
        terms.append(Term(f"tensors[{n}]", one, labels))
    shapes = [((1,) * (2 - len(one.whole)) + one.whole) for one in tensors]
    lengths: dict[Label, int] = {end: sum(shape[n] for shape in shapes) for n, end in enumerate(("rows", "columns"))}
    along: dict[Label, str] = {label: "" for term in terms for label in term.labels}
    value = [(Factor(n),) for n in range(len(terms))]
    return propagate("block_diag", terms, value, ("rows", "columns"), along=along, lengths=lengths)


@pure("column_stack")
def column_stack(tensors: tuple[Operand, ...]) -> Result:
    """End to end along the second dim."""
    if len(tensors[0].shape) < 2:
        raise TypeError("vectors: stack says what is meant")
    return cat(tensors, 1)


@pure("dstack")
def dstack(tensors: tuple[Operand, ...]) -> Result:
    """Matrices side by side along a new last dim."""
    if len(tensors[0].shape) != 2:
        raise TypeError("tensors that are no matrices")
    return stack(tensors, 2)


@pure("rot90")
def rot90(input: Operand, k: int = 1, dims: Sequence[int] = (0, 1)) -> Result:
    """Quarter turns of two dims, of which those that are turned about are whole; linear."""
    a, b = (from_front(dim, len(input.shape)) for dim in dims)
    out = list(range(len(input.shape)))
    if k % 2:
        out[a], out[b] = b, a
    return relabelled("rot90", input, tuple(range(len(out))), tuple(out), ((), (b,), (a, b), (a,))[k % 4], {})


@pure("fliplr")
def fliplr(input: Operand) -> Result:
    """The last position of the second dim, which is whole, first."""
    return flip(input, 1)


@pure("flipud")
def flipud(input: Operand) -> Result:
    """The last position of the first dim, which is whole, first."""
    return flip(input, 0)


@pure("flatten_dense_tensors")
def flatten_dense_tensors(tensors: tuple[Operand, ...]) -> Result:
    """All values of some tensors in one vector: what is reduced together; linear in all, V where one of them is cut."""
    labels = [tuple((n, dim) for dim in range(len(one.shape))) for n, one in enumerate(tensors)]
    own = [of_rank(one) for one in tensors]
    terms = [Term(f"tensors[{n}]", one, mine) for n, (one, mine) in enumerate(zip(own, labels, strict=True))]
    lengths: dict[Label, int] = {"flat": sum(math.prod(one.whole) for one in own)}
    value = [(Factor(n),) for n in range(len(terms))]
    return propagate("flatten_dense_tensors", terms, value, ("flat",), lengths=lengths)


@pure("unflatten_dense_tensors")
def unflatten_dense_tensors(flat: Operand, tensors: tuple[Operand, ...]) -> tuple[Result, ...]:
    """The vector taken apart in the shapes of some tensors, cut as they are where it is V; linear in it."""
    return tuple(_taken(flat, one) for one in tensors)


def _taken(flat: Operand, one: Operand) -> Result:
    labels = tuple(range(len(one.shape)))
    found = propagate(
        "unflatten_dense_tensors",
        (Term("flat", flat, ("flat",)),),
        ((Factor(0),),),
        labels,
        along={"flat": ""},
        lengths=dict(enumerate(of_rank(one).whole)),
    )
    return cut_like(found, one)

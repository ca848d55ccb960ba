"""Ops that work along some dims of one tensor, which are whole, and leave the others alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.rule import pure
from meshwright.check.rules_view import from_front
from meshwright.check.term import Factor, Label, Sum, Term, linear, opaque


def along(
    op: str,
    input: Operand,
    dims: int | Iterable[int],
    value: Sum,
    *,
    lengths: Mapping[int, int] | None = None,
    flows: bool = True,
    instead: str = "",
) -> Result:
    """The result of an op that needs `dims` whole. lengths: of dims that it changes; instead: as of `propagate`."""
    count = len(input.shape)
    named = (dims,) if isinstance(dims, int) else dims
    needed: dict[Label, str] = {dim % max(count, 1): instead for dim in named}
    changed: dict[Label, int] = {dim % max(count, 1): length for dim, length in (lengths or {}).items()}
    labels = tuple(range(count))
    return propagate(op, (Term("input", input, labels),), value, labels, along=needed, lengths=changed, flows=flows)


@pure("softmax", "log_softmax", "softmin", "_softmax", "_log_softmax")
def softmax(input: Operand, dim: int, *args: Any, **kwargs: Any) -> Result:
    """Along a dim that is whole."""
    return along("softmax", input, dim, opaque())


@pure("cumsum")
def cumsum(input: Operand, dim: int, *, dtype: torch.dtype | None = None) -> Result:
    """Along a dim that is whole; linear."""
    return along("cumsum", input, dim, linear())


@pure("cumprod", "logcumsumexp")
def cumprod(input: Operand, dim: int, *, dtype: torch.dtype | None = None) -> Result:
    """Along a dim that is whole."""
    return along("cumprod", input, dim, opaque())


@pure("cummax", "cummin")
def cummax(input: Operand, dim: int) -> tuple[Result, ...]:
    """Values and places along a dim that is whole."""
    return tuple(along("cummax", input, dim, opaque(), flows=flows) for flows in (True, False))


@pure("diff")
def diff(input: Operand, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Result:
    """Between neighbours along a dim that is whole; linear in all that is put together there."""
    if n == 0:  # torch gives the input back, whatever else is said
        return along("diff", input, (), linear())
    labels = tuple(range(len(input.shape)))
    at = from_front(dim, len(labels))
    given = (("input", input), ("prepend", prepend), ("append", append))
    terms = [Term(name, x, tuple((name, at) if each == at else each for each in labels)) for name, x in given if x]
    length = sum(term.given.whole[at] for term in terms if isinstance(term.given, Operand)) - n
    needed: dict[Label, str] = {term.labels[at]: "" for term in terms}
    value = [(Factor(place),) for place in range(len(terms))]
    return propagate("diff", terms, value, labels, along=needed, lengths={at: max(length, 0)})


@pure("sort")
def sort(input: Operand, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> tuple[Result, ...]:
    """Values and places along a dim that is whole."""
    return tuple(along("sort", input, dim, opaque(), flows=flows) for flows in (True, False))


@pure("msort")
def msort(input: Operand) -> Result:
    """Values along the first dim, which is whole."""
    return along("msort", input, 0, opaque())


@pure("argsort")
def argsort(input: Operand, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Result:
    """Places along a dim that is whole."""
    return along("argsort", input, dim, opaque(), flows=False)


@pure("topk")
def topk(input: Operand, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Result, ...]:
    """The k largest values and their places, along a dim that is whole."""
    return tuple(along("topk", input, dim, opaque(), lengths={dim: k}, flows=flows) for flows in (True, False))


@pure("glu")
def glu(input: Operand, dim: int = -1) -> Result:
    """One half of a dim, which is whole, gates the other."""
    return along("glu", input, dim, opaque(), lengths={dim: input.whole[dim] // 2})


@pure("normalize")
def normalize(input: Operand, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: None = None) -> Result:
    """To length one along dims that are whole."""
    return along("normalize", input, dim, opaque())


@pure("renorm")
def renorm(input: Operand, p: float, dim: int, maxnorm: float) -> Result:
    """What belongs to one place of `dim` is whole."""
    count = len(input.shape)
    return along("renorm", input, [each for each in range(count) if each != dim % count], opaque())


@pure("cov", "corrcoef")
def cov(input: Operand, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Result:
    """Of variables with each other, over observations: both are whole."""
    if fweights is not None or aweights is not None or len(input.shape) != 2:
        raise TypeError("weights, or a tensor that is no matrix")
    return along("cov", input, (0, 1), opaque(), lengths={1: input.whole[0]})

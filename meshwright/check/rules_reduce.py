"""Ops that make one position of many along some dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from meshwright.check.algebra import Result, propagate
from meshwright.check.formula import Formula
from meshwright.check.operand import Operand
from meshwright.check.refusal import Refused, change
from meshwright.check.rule import pure
from meshwright.check.term import Factor, Label, Labels, Sum, Term, linear, opaque
from meshwright.types.kinds import P, R

Dims = int | Sequence[int] | None


def _dims(dim: Dims, count: int) -> set[int]:
    """The dims that are meant, counted from the front; None and () mean all."""
    if dim is None or dim == ():
        return set(range(count))
    named = (dim,) if isinstance(dim, int) else tuple(dim)
    if not all(type(each) is int for each in named):
        raise TypeError(f"dim={dim!r}")
    return {each % max(count, 1) for each in named}


def _kept(count: int, gone: set[int], keepdim: bool) -> Labels:
    """The labels of the result; a dim of one position stands where keepdim keeps one."""
    return tuple(("one", dim) if dim in gone else dim for dim in range(count) if keepdim or dim not in gone)


def _reduce(op: str, input: Operand, value: Sum, dim: Dims, keepdim: bool, along: str | None, flows: bool) -> Result:
    """along: what to write instead where a dim is sharded that goes; None where it may be."""
    count = len(input.shape)
    gone = _dims(dim, count)
    lengths: dict[Label, int] = {("one", each): 1 for each in gone}
    needed: dict[Label, str] = {} if along is None else dict.fromkeys(gone, along)
    term = Term("input", input, tuple(range(count)))
    return propagate(op, (term,), value, _kept(count, gone, keepdim), along=needed, lengths=lengths, flows=flows)


@pure("sum")
def sum_(input: Operand, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Result:
    """The sum over a sharded dim is P; a sum of P is P."""
    if dtype is not None and not dtype.is_floating_point and input.dtype.is_floating_point:
        for axis in input.layout.partial:
            raise Refused(
                f"on axis {axis!r} input is P, and sum(dtype={dtype}) would cut its parts to whole numbers",
                "parts that are cut do not add up to the sum that is cut",
                change("input", axis, P, R) + " first",
            )
    return _reduce("sum", input, linear(), dim, keepdim, None, flows=True)


@pure("mean")
def mean(input: Operand, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Result:
    """Divides by the length of the dims on this rank, and so wants them whole."""
    count = 1
    for each in _dims(dim, len(input.shape)):
        count *= input.whole[each]
    shown = "" if dim is None else f"{dim!r}"
    instead = f"input.sum({shown}) / {count}, which is P over the axis: {count} is the count over all ranks"
    return _reduce("mean", input, linear(), dim, keepdim, instead, flows=True)


NONLINEAR: Final = "amax amin prod std var logsumexp nansum nanmean"
"""Reductions to one tensor that are linear in nothing."""
SILENT: Final = "argmax argmin all any count_nonzero"
"""The same, without a gradient."""


def _reduction(name: str, flows: bool) -> None:
    def infer(input: Operand, dim: Dims = None, keepdim: bool = False, **static: Any) -> Result:
        return _reduce(name, input, opaque(), dim, keepdim, "", flows)

    pure(name)(infer)


for _name in NONLINEAR.split():
    _reduction(_name, flows=True)
for _name in SILENT.split():
    _reduction(_name, flows=False)


@pure("max", "min")
def max_(input: Operand, dim: Any = None, keepdim: bool = False, *, other: Operand | None = None) -> Any:
    """Of all positions; along a dim, with the places; or of two tensors, as `maximum`."""
    if isinstance(dim, Operand):
        dim, other = None, dim
    if other is not None:
        return _LARGER.infer("max", (input, other), {})
    values = _reduce("max", input, opaque(), dim, keepdim, "", flows=True)
    return values if dim is None else (values, _reduce("max", input, opaque(), dim, keepdim, "", flows=False))


_LARGER: Final = Formula.read("input, other: ~input * ~other")


@pure("vector_norm", "norm", "linalg_vector_norm")
def norm(
    input: Operand, p: Any = 2, dim: Dims = None, keepdim: bool = False, *, ord: Any = None, dtype: Any = None
) -> Result:
    """Not a sum: of a sharded tensor the squares are."""
    instead = "input.square().sum(), which is P over the axis: reduce it, then .sqrt()"
    return _reduce("norm", input, opaque(), dim, keepdim, instead, flows=True)


@pure("softmax", "log_softmax", "softmin")
def softmax(input: Operand, dim: int, *args: Any, **kwargs: Any) -> Result:
    """Along a dim that is whole."""
    return _along("softmax", input, dim, opaque())


@pure("cumsum")
def cumsum(input: Operand, dim: int, *, dtype: torch.dtype | None = None) -> Result:
    """Along a dim that is whole; linear."""
    return _along("cumsum", input, dim, linear())


@pure("sort")
def sort(input: Operand, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> tuple[Result, ...]:
    """Values and places along a dim that is whole."""
    return tuple(_along("sort", input, dim, opaque(), flows=flows) for flows in (True, False))


@pure("argsort")
def argsort(input: Operand, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Result:
    """Places along a dim that is whole."""
    return _along("argsort", input, dim, opaque(), flows=False)


@pure("topk")
def topk(input: Operand, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Result, ...]:
    """The k largest values and their places, along a dim that is whole."""
    lengths: dict[Label, int] = {dim % len(input.shape): k}
    return tuple(_along("topk", input, dim, opaque(), lengths=lengths, flows=flows) for flows in (True, False))


def _along(
    op: str, input: Operand, dim: int, value: Sum, *, lengths: dict[Label, int] | None = None, flows: bool = True
) -> Result:
    labels = tuple(range(len(input.shape)))
    needed: dict[Label, str] = {dim % max(len(labels), 1): ""}
    term = Term("input", input, labels)
    return propagate(op, (term,), value, labels, along=needed, lengths=lengths, flows=flows)


@pure("layer_norm", "rms_norm")
def layer_norm(
    input: Operand,
    normalized_shape: Sequence[int],
    weight: Operand | None = None,
    bias: Any = None,
    eps: float | None = 1e-5,
) -> Result:
    """Over the last dims, which are whole; scaled by a weight of their shape, and shifted."""
    labels = tuple(range(len(input.shape)))
    last = labels[len(labels) - len(normalized_shape) :]
    terms = [Term("input", input, labels)]
    value: list[tuple[Factor, ...]] = [(Factor(0, linear=False),)]
    if weight is not None:
        terms.append(Term("weight", weight, last))
        value = [(Factor(0, linear=False), Factor(1))]
    if isinstance(bias, Operand):
        terms.append(Term("bias", bias, last))
        value.append((Factor(len(terms) - 1),))
    needed: dict[Label, str] = dict.fromkeys(last, "")
    return propagate("norm", terms, value, labels, along=needed)


@pure("cross_entropy", "nll_loss")
def cross_entropy(
    input: Operand,
    target: Operand,
    weight: Operand | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Result:
    """input[N, classes, ...], target[N, ...]: classes are whole; a sum over sharded positions is P."""
    if weight is not None or size_average is not None or reduce is not None:
        raise TypeError("weight, size_average or reduce")
    places = tuple(place for place in range(len(input.shape)) if place != (1 if len(input.shape) > 1 else 0))
    classes = 1 if len(input.shape) > 1 else 0
    labels = tuple("classes" if place == classes else place for place in range(len(input.shape)))
    if len(target.shape) == len(input.shape):
        raise TypeError("a target of probabilities")
    return _loss("cross_entropy", (Term("input", input, labels), Term("target", target, places)), reduction, "classes")


@pure("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
def elementwise_loss(
    input: Operand, target: Operand, size_average: Any = None, reduce: Any = None, reduction: str = "mean", **_: Any
) -> Result:
    """Position by position, then a sum."""
    labels = tuple(range(len(input.shape)))
    return _loss("a loss", (Term("input", input, labels), Term("target", target, labels)), reduction, None)


def _loss(op: str, terms: tuple[Term, Term], reduction: str, needed: Label) -> Result:
    places = terms[0].labels if needed is None else terms[1].labels
    out = places if reduction == "none" else ()
    along: dict[Label, str] = {} if needed is None else {needed: ""}
    if reduction == "mean":
        instead = 'reduction="sum", which is P over the axis, divided once by the number of positions over all ranks'
        along |= dict.fromkeys(places, instead)
    return propagate(op, terms, opaque(2), out, along=along)

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
from meshwright.check.term import Label, Labels, Sum, Term, linear, opaque
from meshwright.codes import Code
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


def reduced(
    op: str, input: Operand, value: Sum, dim: Dims, keepdim: bool, along: str | None, flows: bool = True
) -> Result:
    """One position of many.

    along: what to write instead where a dim is sharded that goes; None where it may be.
    """
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
                code=Code.CAST,
            )
    return reduced("sum", input, linear(), dim, keepdim, None)


@pure("mean")
def mean(input: Operand, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Result:
    """Divides by the length of the dims on this rank, and so wants them whole."""
    count = 1
    for each in _dims(dim, len(input.shape)):
        count *= input.whole[each]
    given = [*([] if dim is None else [f"{dim!r}"]), *(["keepdim=True"] if keepdim else [])]
    instead = (
        f"input.sum({', '.join(given)}) / {count}, which is P over the axis until it is reduced: {count} is the count "
        "over all ranks"
    )
    return reduced("mean", input, linear(), dim, keepdim, instead)


NONLINEAR: Final = "amax amin prod std var logsumexp nanmean"
"""Reductions to one tensor that are linear in nothing."""
SILENT: Final = "argmax argmin all any"
"""The same, without a gradient."""


def _reduction(name: str, flows: bool) -> None:
    def infer(input: Operand, dim: Dims = None, keepdim: bool = False, **static: Any) -> Result:
        """Over dims that are whole."""
        return reduced(name, input, opaque(), dim, keepdim, "", flows)

    pure(name)(infer)


for _name in NONLINEAR.split():
    _reduction(_name, flows=True)
for _name in SILENT.split():
    _reduction(_name, flows=False)


@pure("nansum")
def nansum(input: Operand, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Result:
    """The sum over a sharded dim is P; what is NaN in a sum need not be NaN in its parts."""
    return reduced("nansum", input, opaque(), dim, keepdim, None, flows=True)


@pure("count_nonzero")
def count_nonzero(input: Operand, dim: Dims = None) -> Result:
    """Counts over a sharded dim add up."""
    return reduced("count_nonzero", input, opaque(), dim, False, None, flows=False)


@pure("max", "min")
def max_(input: Operand, dim: Any = None, keepdim: bool = False, *, other: Operand | None = None) -> Any:
    """Of all positions; along a dim, with the places; or of two tensors, as `maximum`."""
    if isinstance(dim, Operand):
        dim, other = None, dim
    if other is not None:
        return _LARGER.infer("max", (input, other), {})
    return picked("max", input, dim, keepdim) if dim is not None else reduced("max", input, opaque(), None, False, "")


_LARGER: Final = Formula.read("input, other: ~input * ~other")


def picked(op: str, input: Operand, dim: int, keepdim: bool) -> tuple[Result, Result]:
    """A value of each line along `dim`, which is whole, and its place."""
    values, indices = (reduced(op, input, opaque(), dim, keepdim, "", flows) for flows in (True, False))
    return values, indices


@pure("median", "nanmedian")
def median(input: Operand, dim: int | None = None, keepdim: bool = False) -> Any:
    """Of all positions, which are whole; along a dim, with the places."""
    return (
        picked("median", input, dim, keepdim)
        if dim is not None
        else reduced("median", input, opaque(), None, False, "")
    )


@pure("mode")
def mode(input: Operand, dim: int = -1, keepdim: bool = False) -> tuple[Result, Result]:
    """The most frequent value along a dim that is whole, and its place."""
    return picked("mode", input, dim, keepdim)


@pure("kthvalue")
def kthvalue(input: Operand, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Result, Result]:
    """The k-th smallest value along a dim that is whole, and its place."""
    return picked("kthvalue", input, dim, keepdim)


@pure("aminmax")
def aminmax(input: Operand, *, dim: int | None = None, keepdim: bool = False) -> tuple[Result, ...]:
    """Smallest and largest along a dim that is whole."""
    return (reduced("aminmax", input, opaque(), dim, keepdim, ""),) * 2


@pure("std_mean", "var_mean")
def var_mean(input: Operand, dim: Dims = None, keepdim: bool = False, **static: Any) -> tuple[Result, ...]:
    """Spread and mean along dims that are whole."""
    return (reduced("var_mean", input, opaque(), dim, keepdim, ""),) * 2


@pure("quantile", "nanquantile")
def quantile(
    input: Operand, q: float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Result:
    """One quantile along a dim that is whole."""
    if isinstance(q, Operand):
        raise TypeError("a tensor of quantiles")
    return reduced("quantile", input, opaque(), dim, keepdim, "")


_SQUARES: Final = "input.square().sum(), which is P over the axis: reduce it, then .sqrt()"


@pure("vector_norm", "linalg_vector_norm")
def vector_norm(
    x: Operand, ord: Any = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Result:
    """Not a sum: of a sharded tensor the squares are."""
    return reduced("vector_norm", x, opaque(), dim, keepdim, _SQUARES)


@pure("norm")
def norm(
    input: Operand,
    p: Any = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    out: None = None,
    dtype: torch.dtype | None = None,
) -> Result:
    """Over dims that are whole, in the forms of `torch.norm` and `torch.linalg.norm`."""
    return reduced("norm", input, opaque(), dim, keepdim, _SQUARES)


@pure("matrix_norm")
def matrix_norm(
    A: Operand, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Result:
    """Of matrices that are whole."""
    return reduced("matrix_norm", A, opaque(), dim, keepdim, "")


@pure("trace")
def trace(input: Operand) -> Result:
    """The sum along the diagonal of a matrix that is whole; linear."""
    return reduced("trace", input, linear(), None, False, "")


@pure("trapezoid", "trapz")
def trapezoid(y: Operand, x: Any = None, *, dx: float = 1.0, dim: int = -1) -> Result:
    """A sum along a dim that is whole, in which the ends count half; linear."""
    if x is not None:
        raise TypeError("x")
    return reduced("trapezoid", y, linear(), dim, False, "")


@pure("histc")
def histc(input: Operand, bins: int = 100, min: float = 0, max: float = 0) -> Result:
    """Counts add up over a sharded dim, where the bins do not depend on the values."""
    one = reduced("histc", input, opaque(), None, False, None if min or max else "", flows=False)
    return Result(one.tag, (bins,))

"""What is demanded of a call beside the types of its operands: that sums are not rounded, and lengths are no values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from meshwright.check.operand import Operand, keeps_sums
from meshwright.check.refusal import rounded, typed_number
from meshwright.check.tag import read
from meshwright.comm.number import Number, Real, Source

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck


def demand_no_share(check: TypeCheck, op: str) -> None:
    """The local length of a sharded dim is a length of dims that are cut alike, and no other number that an op takes.

    Errors: `Refused`.
    """
    for number in check.numbers:
        if isinstance(number, Real) or op not in _TAKE_LENGTHS:
            demand_no_value(check, number, f"what {op} computes")


def demand_no_fraction(check: TypeCheck, op: str) -> None:
    """What is computed of a local length is no length any more: no op takes it as a number.

    Errors: `Refused`.
    """
    for number in check.numbers:
        if isinstance(number, Real):
            demand_no_value(check, number, f"what {op} computes")


_TAKE_LENGTHS: Final = {
    *("view", "reshape", "unflatten", "expand", "broadcast_to", "repeat", "tile", "repeat_interleave"),
    *("__getitem__", "narrow", "group_norm", "affine_grid"),
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
}
"""Ops whose rules say themselves which of their numbers may be the length of what a rank holds."""


def demand_no_value(check: TypeCheck, value: Any, name: str) -> None:
    """The local length of a sharded dim is used as no value beside `name`.

    Errors: `Refused`.
    """
    if isinstance(value, Number) and value.origin.source is Source.LENGTH and not check.local:
        raise typed_number(value, name)


def demand_exact(op: str, part: Operand, result: Any) -> None:
    """A sum stays one where its parts are not rounded: an op may do so by its dtype, its target, or by autocast.

    Errors: `Refused`.
    """
    for x in tensors_of(result) if part.partial else ():
        if read(x).layout.partial:
            dtype = part.dtype.to_real() if part.dtype.is_complex and not x.dtype.is_complex else part.dtype
            if not keeps_sums(x.dtype, dtype):
                raise rounded(read(x).layout.partial[0], "an operand", op, dtype, x.dtype)


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Those of a tensor, or of a list or tuple of what has some."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_of(each)

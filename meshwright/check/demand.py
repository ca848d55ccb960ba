"""What is demanded of a call beside the types of its operands: that sums are not rounded, and lengths are no values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from torch import Tensor

from meshwright.check.operand import Operand, keeps_sums
from meshwright.check.refusal import rounded, typed_number
from meshwright.check.tag import read
from meshwright.comm.number import Real, is_length

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

T = TypeVar("T")


def demand_no_share(check: TypeCheck, op: str, *, constants: bool = False) -> None:
    """The local length of a sharded dim is a length of dims that are cut alike, and no other number that an op takes.

    What is a fraction of it is no length any more. constants: the op takes those alone, which may have any length.

    Errors: `Refused`.
    """
    for number in check.numbers:
        if isinstance(number, Real) or not (constants or op in _TAKE_LENGTHS):
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
    if is_length(value) and not check.local:
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
    return found_in(value, Tensor)


def found_in(value: Any, kind: type[T]) -> Iterator[T]:
    """What is of that kind: the value itself, or what a list or tuple has of it."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from found_in(each, kind)

"""Tensors that share their memory: one is not written as what the other is not."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from meshwright.check.refusal import Refused
from meshwright.check.tag import noted
from meshwright.codes import Code

_KIND: Final = {"R": "alike", "I": "alike", "V": "varying", "S": "varying", "P": "partial"}


def demand_unshared(op: str, x: Tensor) -> None:
    """A tensor that shares its memory with one of another type is not written.

    Errors: `Refused`.
    """
    base = x._base
    if base is None:
        return
    mine, theirs = noted(x).layout, noted(base).layout
    for axis, kind in mine.items():
        held = theirs.get(axis)
        if held is not None and _KIND[held.letter] != _KIND[kind.letter]:
            raise Refused(
                f"on axis {axis!r} {op} would write into {kind!r}, which shares its memory with a tensor that is "
                f"{held!r}",
                "the write would change that tensor too, and its type would be wrong",
                "x.clone() before the write",
                code=Code.WRITE,
            )

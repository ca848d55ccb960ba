"""What must be alike on all ranks of a call: what it is, and of its arguments all but the values of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from meshwright.check.demand import tensors_of
from meshwright.comm.number import Number, Source

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

_SERIAL: Final = "_spmd_serial"
"""Attribute of a tensor in a replay: how many came before it."""


def numbered(check: TypeCheck, result: Any) -> Any:
    """The result, its tensors numbered in the order in which they come, so that ranks can tell which they use."""
    for x in tensors_of(result):
        if _SERIAL not in x.__dict__:
            check.made += 1
            x.__dict__[_SERIAL] = check.made
    return result


def static(value: Any, shown: Callable[[Tensor], Any]) -> Iterator[Any]:
    """What of the arguments is no tensor; of tensors the types and the shapes over all ranks, as `shown` says them."""
    if isinstance(value, Tensor):
        wants = ", wants a gradient" if value.requires_grad else ""
        yield f"{shown(value)!r} no. {value.__dict__.get(_SERIAL, 0)}{wants}"
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from static(each, shown)
    elif isinstance(value, slice):
        yield from static((value.start, value.stop, value.step), shown)
    elif isinstance(value, Number) and value.origin.source is not Source.RANK:
        yield value.origin.text
    else:
        yield value

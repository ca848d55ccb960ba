"""Values that leave tensors for Python, where no type follows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from meshwright.check.context import active, is_present
from meshwright.check.intercept import mode_is_on
from meshwright.check.operand import Operand
from meshwright.check.refusal import Refused, change, typed_number
from meshwright.check.rule import forms, special
from meshwright.check.tag import read
from meshwright.codes import Code
from meshwright.comm.followed import checkers, whole
from meshwright.comm.number import Number, Origin, Source, forgetting
from meshwright.types.kinds import I, P, R, Shard, V

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

_READING = (
    "item tolist numpy equal allclose is_nonzero __bool__ __float__ __int__ __index__ __complex__ __contains__ "
    "__array__ unique"
)


def _demand_equal(name: str, x: Tensor) -> None:
    for axis, kind in read(x).layout.items():
        if kind is P:
            raise Refused(
                f"{name} reads a value that is P on axis {axis!r}",
                "a rank holds its part of a sum, not the sum",
                f"{change('x', axis, P, R)} first",
                code=Code.READ,
            )
        if kind not in (R, I):
            raise Refused(
                f"{name} reads a value that is {kind!r} on axis {axis!r}",
                "it is another value on each rank, and what Python does with it is not followed",
                f"{change('x', axis, kind, R)} first, and read its entries, tolist(); or keep it a tensor; or, of "
                "lengths that are this rank's own, x.tolist() in a region: with spmd.local()",
                code=Code.READ,
            )


def _origin(check: TypeCheck, name: str, x: Any) -> Origin | None:
    """Where whole numbers come from that are read in a region, as the sizes of an exchange are: they remember it."""
    if not check.local or name not in ("tolist", "item") or x.dtype.is_floating_point or x.dtype.is_complex:
        return None
    kinds = check.operand(x).layout
    axes = frozenset(axis for axis, kind in kinds.items() if kind in (V, P) or isinstance(kind, Shard))
    return Origin(Source.INDEX, axes, f"x.{name}()") if axes else None


def _remembering(value: Any, origin: Origin) -> Any:
    return [_remembering(each, origin) for each in value] if isinstance(value, list) else whole(value, origin)


def _read(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Every rank reads the same."""
    origin = _origin(check, func.__name__, args[0]) if len(args) == 1 else None
    if origin is not None:
        return _remembering(func(*args, **kwargs), origin)
    for x in args:
        if isinstance(x, Tensor):
            _demand_equal(func.__name__, x)
    seen: list[Operand] = []
    check.seen_by_rules(args, seen)
    return check.note_plain(func(*args, **kwargs), seen)


special(*(function for name in _READING.split() for function in forms(name)))(_read)


def _forgotten(number: Number) -> None:
    """float() of a local length: nothing follows what it gives."""
    check = active()
    if check is None or check.local or number.origin.source is not Source.LENGTH or not mode_is_on():
        return

    def refuse(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        raise typed_number(number, "what float() makes a plain number for")

    check.run(refuse, float, (), {})


forgetting.append(_forgotten)
checkers.append(is_present)


@special(torch.Tensor.__format__)
def formatted(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A number in a text is a value that was read; the repr of more than one is only shown."""
    if args[0].dim() == 0:
        _demand_equal("format", args[0])
    return func(*args, **kwargs)

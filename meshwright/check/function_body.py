"""What the forward and the backward of a Function see, which run apart from the graph of autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from meshwright.check.context import active
from meshwright.check.parts import pick
from meshwright.check.tag import read, typed, write
from meshwright.comm.number import Number, Source
from meshwright.types.kinds import I, R, V

_PICKS: Final = frozenset({Tensor.__getitem__, Tensor.narrow, torch.narrow, Tensor.select, torch.select, pick})


class Body(TorchFunctionMode):
    """A rank that picks by its place from what is R or I has a part of its own, V: no gradient is followed here, and
    what backward makes of it is held against forward.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in _PICKS and args and isinstance(args[0], Tensor) and not torch.is_grad_enabled():
            axes = frozenset(_places((*args[1:], *given.values())))
            if axes:
                args = (_own(args[0], axes), *args[1:])
        return func(*args, **given)


def _places(value: Any) -> Iterator[str]:
    if isinstance(value, Number):
        if value.origin.source is Source.INDEX:
            yield from value.origin.axes
    elif isinstance(value, slice):
        yield from _places((value.start, value.stop, value.step))
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _places(each)


def _own(x: Tensor, axes: frozenset[str]) -> Tensor:
    check, tag = active(), read(x)
    same = [axis for axis in sorted(axes) if tag.layout.get(axis) in (R, I)]
    if check is None or not same:
        return x
    with torch._C.DisableTorchFunction():
        made = x.view_as(x)
    write(made, typed(tag.layout.replace(**dict.fromkeys(same, V)), tag.counted, tag.factors))
    return made


class Context:
    """The context of a Function as its backward sees it, with the types of saved outputs."""

    def __init__(self, ctx: Any, outputs: Sequence[Tensor]) -> None:
        self._ctx, self._outputs = ctx, outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """As they were saved."""
        saved = self._ctx.saved_tensors
        for x in saved:
            if isinstance(x, Tensor) and not read(x).layout:
                for output in self._outputs:
                    if output.shape == x.shape and output.data_ptr() == x.data_ptr():
                        write(x, read(output))
        return tuple(saved)

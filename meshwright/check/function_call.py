"""A call of a Function that is tried: its arguments, and how forward and backward are run on others like them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from meshwright.check.closure import closed_over
from meshwright.check.function_collectives import Untried
from meshwright.comm.number import Number, Source
from meshwright.types.layout import SpmdLayout


@dataclass
class Call:
    """A call of `cls` that is to be tried. layouts: of the outputs that are tensors, as declared."""

    cls: Any
    args: tuple[Any, ...]
    layouts: Sequence[SpmdLayout]

    @property
    def wanted(self) -> list[int]:
        """The arguments that want a gradient."""
        return [n for n, x in enumerate(self.args) if isinstance(x, Tensor) and x.requires_grad]

    def name(self, place: int) -> str:
        """Of an argument."""
        names = argument_names(self.cls)
        return names[place] if place < len(names) else f"argument {place}"


def argument_names(cls: Any) -> list[str]:
    """What the arguments of `apply` are called."""
    code = cls.forward.__code__ if hasattr(cls.forward, "__code__") else None
    names = list(code.co_varnames[: code.co_argcount]) if code else []
    has_context = cls.setup_context is torch.autograd.Function.setup_context
    return names[1:] if has_context else names


def once(call: Call) -> None:
    """Forward and backward, whatever they return, on the values that are given."""
    values = [torch.zeros(x.shape, dtype=x.dtype) if isinstance(x, Tensor) and x.is_meta else x for x in call.args]
    outputs, back = forward(call, fresh(call, values))
    back([torch.ones_like(y) if isinstance(y, Tensor) else None for y in outputs])


def fresh(call: Call, values: Sequence[Any]) -> list[Any]:
    """Arguments that a Function may write into, which it may not where they are leaves."""
    wanted = call.wanted
    return [
        (x.detach().requires_grad_() if n in wanted else x).clone() if isinstance(x, Tensor) else x
        for n, x in enumerate(values)
    ]


def forward(call: Call, args: Sequence[Any]) -> tuple[list[Any], Callable[[Sequence[Any]], tuple[Any, ...]]]:
    """The outputs, and what takes their gradients to those of the arguments.

    Backward is called by hand: the engine's thread of a device would wait for ranks whose turn comes later.
    """
    outputs = call.cls.apply(*args)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    nodes = [y.grad_fn for y in outputs if isinstance(y, Tensor) and y.grad_fn is not None]
    node = next((each for each in nodes if getattr(each, "_forward_cls", None) is call.cls), None)
    if node is None:
        raise Untried("its outputs do not show where they come from")

    def back(gradients: Sequence[Any]) -> tuple[Any, ...]:
        with torch.no_grad():
            found = call.cls.backward(node, *gradients)
        return found if isinstance(found, tuple) else (found,)

    return outputs, back


def knows_rank(call: Call) -> bool:
    """Whether it is given a number that is another one on each rank: others cannot be tried with it."""
    met: set[int] = set()
    known = (*tree_leaves(call.args), *_around(call.cls.forward, met), *_around(call.cls.backward, met))
    return any(isinstance(each, Number) and each.origin.source in (Source.INDEX, Source.RANK) for each in known)


def _around(function: Any, met: set[int]) -> Iterator[Any]:
    """What a function knows besides its arguments, and what the functions know that it closes over.

    met: the ids of those that were looked at.
    """
    plain = inspect.unwrap(function) if callable(function) else function
    if not inspect.isfunction(plain) or id(plain) in met:
        return
    met.add(id(plain))
    yield from (plain.__globals__.get(name) for name in plain.__code__.co_names)
    for _, value in closed_over(plain):
        yield value
        yield from _around(value, met)

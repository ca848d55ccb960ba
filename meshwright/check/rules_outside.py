"""What makes tensors of others behind every mode's back: parameters, transforms of functions; and compiling."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from meshwright.check.author import layout_of
from meshwright.check.context import active
from meshwright.check.intercept import mode_is_on, place
from meshwright.check.refusal import change
from meshwright.check.rules_flex import flex, is_flex
from meshwright.check.source import line
from meshwright.check.tag import Tag, read, typed, write
from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import I, R, S, Shard, V
from meshwright.types.layout import SpmdLayout


@place(lambda: torch.nn.Parameter, "__new__")
def parameter(original: Callable[..., Any], cls: type, data: Any = None, requires_grad: bool = True) -> Any:
    """A parameter has the type of the tensor that it is made of."""
    made = original(cls, data, requires_grad)
    if active() is not None and isinstance(data, Tensor):
        tag = read(data)
        if tag.layout:
            write(made, Tag(tag.layout, factors=tag.factors, stated=tag.stated or line()))
    return made


def _same(original: Callable[..., Any], x: Any, *args: Any) -> Any:
    made = original(x, *args)
    if active() is not None and isinstance(x, Tensor) and isinstance(made, Tensor) and read(x).layout:
        write(made, read(x))
    return made


place(lambda: sys.modules.get("torch._functorch.eager_transforms"), "_wrap_for_grad", "_unwrap_for_grad")(_same)


_mapped: dict[int, set[str]] = {}
"""Level of a running vmap -> the axes that shard what it maps over."""


@place(lambda: sys.modules.get("torch._functorch.vmap"), "_add_batch_dim")
def batched(original: Callable[..., Any], x: Any, dim: int, level: int) -> Any:
    """One entry of many: over an axis that shards the dim that is mapped, each rank has entries of its own, V."""
    made = original(x, dim, level)
    if active() is None or not isinstance(x, Tensor):
        return made
    if not read(x).layout:
        write(made, read(x))
        return made
    at = dim % max(x.dim(), 1)
    types = {}
    for axis, kind in layout_of(x).items():
        if kind is I and x.requires_grad and torch.is_grad_enabled():
            raise SpmdTypeError(_invariant_mapped(axis))
        if isinstance(kind, Shard):
            if kind.dim == at:
                _mapped.setdefault(level, set()).add(axis)
                kind = V
            else:
                kind = S(kind.dim - (kind.dim > at), kind.sizes)
        types[axis] = kind
    write(made, typed(SpmdLayout(types)))
    return made


def _invariant_mapped(axis: str) -> Problem:
    return Problem(
        where=line(),
        what=f"vmap maps over a tensor that is I on axis {axis!r} and wants a gradient",
        why="inside vmap nothing says which tensors want a gradient, and that of I must not differ from rank to rank",
        fix=change("x", axis, I, R) + " before vmap",
        code=Code.INVARIANT_MEETS,
    )


@place(lambda: sys.modules.get("torch._functorch.vmap"), "_remove_batch_dim")
def unbatched(original: Callable[..., Any], x: Any, level: int, size: Any, dim: int) -> Any:
    """All entries again: what was V because of the mapped dim is sharded along it."""
    made = original(x, level, size, dim)
    if active() is None or not isinstance(x, Tensor):
        return made
    if not read(x).layout:
        write(made, read(x))
        return made
    at = dim % max(made.dim(), 1)
    axes = _mapped.get(level, set())
    types = {}
    for axis, kind in layout_of(x).items():
        if kind is V and axis in axes:
            kind = S(at)
        elif isinstance(kind, Shard):
            kind = S(kind.dim + (kind.dim >= at), kind.sizes)
        types[axis] = kind
    write(made, typed(SpmdLayout(types)))
    return made


@place(lambda: torch.nn.Module, "load_state_dict")
def loaded(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """torch collects what goes wrong in words; a type error stays one.

    Errors: `SpmdTypeError` where a value of another type than the state's was to be written into it.
    """
    check = active()
    try:
        return original(*args, **kwargs)
    except RuntimeError as error:
        if check is not None and check.told is not None and check.told.what in str(error):
            raise SpmdTypeError(check.told) from None
        raise


@place(lambda: sys.modules.get("torch._dynamo.eval_frame"), "_callback_from_stance")
def compiling(original: Callable[..., Any], callback: Any, *args: Any) -> Any:
    """A compiled function is called; one that is never to be compiled has no callback."""
    if callable(callback) and active() is not None and mode_is_on():
        raise SpmdTypeError(_compiling())
    return original(callback, *args)


@place(lambda: torch, "compile")
def compile_(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function is compiled while somebody checks."""
    if active() is not None and mode_is_on():
        if args and is_flex(args[0]):
            return flex(original, *args, **kwargs)
        raise SpmdTypeError(_compiling())
    return original(*args, **kwargs)


def _compiling() -> Problem:
    return Problem(
        where=line(),
        what="torch.compile runs while the checker is on",
        why="a graph has no types, and the checker's own calls would be compiled into it",
        fix="check the program without torch.compile first; then compile it and run it outside typecheck()",
        code=Code.COMPILING,
    )

"""Tensors that a region takes without a place to declare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from meshwright.check.author import Types, layout_of
from meshwright.check.closure import closed_over


class Entering(NamedTuple):
    """A tensor that a region takes. grad: what is declared of its gradient; None where no place is to declare it."""

    name: str
    value: Tensor
    layout: Types
    grad: Types | None


def undeclarable(args: tuple[Any, ...], kwargs: Mapping[str, Any], function: Callable[..., Any]) -> Iterator[Entering]:
    """What a region takes by keyword, and what its function knows besides: of its closure, its module, its defaults."""
    seen = {id(x) for x in tree_leaves(args) if isinstance(x, Tensor)}
    by_keyword = [(f"argument {name!r}", value) for name, value in kwargs.items()]
    for name, value in (*by_keyword, *_known_to(function, args)):
        for x in _tensors(value):
            if id(x) not in seen:
                seen.add(id(x))
                yield Entering(name, x, layout_of(x), None)


def _known_to(function: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Name -> value, of what the code of a function names that is none of its arguments."""
    owners = (*args, getattr(function, "__self__", None))
    function = getattr(function, "__func__", function)
    code: CodeType | None = getattr(function, "__code__", None)
    if code is None:
        if isinstance(function, nn.Module):
            yield f"{type(function).__name__}", function
        return
    for name, value in closed_over(function):
        yield f"{name!r} of the closure", value
    by_name: Mapping[str, Any] = getattr(function, "__kwdefaults__", None) or {}
    for default in (*(getattr(function, "__defaults__", None) or ()), *by_name.values()):
        yield "a default", default
    names = _names(code)
    for name in sorted(names & getattr(function, "__globals__", {}).keys()):
        yield f"{name!r} of the module", function.__globals__[name]
    for owner in owners:
        if isinstance(owner, nn.Module):
            yield from _of_owner(owner, names, set())


def _names(code: CodeType) -> set[str]:
    """Names of globals and attributes in a code, and in the functions in it."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _of_owner(owner: nn.Module, names: set[str], followed: set[str]) -> Iterator[tuple[str, Any]]:
    """What a code takes of a module: the attributes that it names, and those that methods which it names take."""
    for name in sorted(names - followed):
        followed.add(name)
        method = getattr(type(owner), name, None)
        if name in owner._parameters or name in owner._buffers or name in owner._modules or name in vars(owner):
            yield f"self.{name}", getattr(owner, name)
        elif method is not None and hasattr(method, "__code__") and not hasattr(nn.Module, name):
            yield from _of_owner(owner, _names(method.__code__), followed)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Tensors of a tree, and the parameters and buffers of modules in it."""
    for leaf in tree_leaves(value) if isinstance(value, (list, tuple, dict)) else (value,):
        if isinstance(leaf, Tensor):
            yield leaf
        elif isinstance(leaf, nn.Module):
            yield from leaf.parameters()
            yield from leaf.buffers()

"""Tensors that a function can reach and that are none of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import Tensor, nn

from meshwright.check.closure import closed_over

Found = Iterator[tuple[str, Tensor]]
"""What a tensor is called -> the tensor."""

_LEAVES: Final = (type(None), int, float, complex, str, bytes, type, ModuleType, BuiltinFunctionType, torch.dtype)
"""Values that hold no tensor."""
_CLOSURE: Final = "{!r} of the closure"
_MODULE: Final = "{!r} of the module"


class Reach:
    """One search: what was looked into is not looked into again.

    Names are those that the code of a function has: of an object it takes the attributes that it names, and what the
    methods take that it names; of a module that it does not look into, all.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[int, frozenset[str]]] = set()

    def of(self, function: Callable[..., Any], args: tuple[Any, ...] = ()) -> Found:
        """What a function can reach: by its closure, its file, its defaults, and as attributes of its arguments."""
        if isinstance(function, partial):
            for value in (*function.args, *function.keywords.values()):
                yield from self.into("an argument of the partial", "{}", value)
            yield from self.of(function.func, args)
            return
        if isinstance(function, MethodType):
            yield from self.of(function.__func__, (function.__self__, *args))
            return
        if not isinstance(function, FunctionType):
            called = inspect.getattr_static(type(function), "__call__", None)
            if isinstance(function, nn.Module):
                yield from self.into(type(function).__name__, "{}", function)
            elif isinstance(called, FunctionType):
                yield from self.of(MethodType(called, function), args)
            return
        code = function.__code__
        names = _names(code)
        if not self._is_new(function, names):
            return
        for name, value in closed_over(function):
            yield from self.into(name, _CLOSURE, value, names)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            yield from self.into("a default", "{}", value, names)
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            if not isinstance(value, FunctionType) or value.__globals__ is function.__globals__:
                yield from self.into(name, _MODULE, value, names)
        for name, value in zip(code.co_varnames[: code.co_argcount], args, strict=False):
            if not isinstance(value, (*_LEAVES, Tensor, list, tuple, dict)):
                yield from self._attributes(name, "{}", value, names)

    def into(self, path: str, where: str, value: Any, names: frozenset[str] = frozenset()) -> Found:
        """The tensors in a value. path: what it is called; where: what is said of that."""
        if isinstance(value, Tensor):
            yield where.format(path), value
        elif isinstance(value, nn.Module):
            for x in (*value.parameters(), *value.buffers()):
                yield where.format(path), x
        elif isinstance(value, (list, tuple, set, frozenset, Mapping)):
            if self._is_new(value, names):
                for each in value.values() if isinstance(value, Mapping) else value:
                    yield from self.into(path, where, each, names)
        elif isinstance(value, (FunctionType, MethodType, partial)):
            yield from self.of(value)
        elif not isinstance(value, _LEAVES):
            yield from self._attributes(path, where, value, names)
            yield from self.of(value)

    def _attributes(self, path: str, where: str, owner: Any, names: frozenset[str]) -> Found:
        if not self._is_new(owner, names):
            return
        for name in sorted(names):
            found = inspect.getattr_static(owner, name, None)
            if isinstance(found, property):
                found = found.fget
            if isinstance(found, (staticmethod, classmethod)):
                found = found.__func__
            if isinstance(found, FunctionType) and name not in vars(owner).keys() | vars(nn.Module).keys():
                yield from self._attributes(path, where, owner, _names(found.__code__))
            elif inspect.isdatadescriptor(found) or (isinstance(owner, nn.Module) and found is None):
                yield from self.into(f"{path}.{name}", where, getattr(owner, name, None), names)
            else:
                yield from self.into(f"{path}.{name}", where, found, names)

    def _is_new(self, value: Any, names: frozenset[str]) -> bool:
        key = id(value), names
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


def _names(code: CodeType) -> frozenset[str]:
    """Names of globals and attributes in a code, and in the functions in it."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(code.co_names).union(*map(_names, inner))

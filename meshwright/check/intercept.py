"""What torch does not route through a function mode is routed here, as long as somebody is checking.

Custom `autograd.Function`s, collectives of `torch.distributed`, `nn.Parameter`, the transforms of `torch.func` and
`torch.compile` call past every mode. A rule module registers the places it must see; they are wrapped when the first
check of the process begins, and are what they were when the last one ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from types import ClassMethodDescriptorType
from typing import Any, Final, TypeVar

import torch
from torch.overrides import TorchFunctionMode

W = TypeVar("W", bound=Callable[..., Any])


@dataclass(frozen=True)
class Place:
    """The attribute `name` of `owner()`, which is None where it is not loaded; wrap: original -> what stands there."""

    owner: Callable[[], Any]
    name: str
    wrap: Callable[[Any], Any]


_places: Final[list[Place]] = []
_lock: Final = threading.Lock()
_originals: Final[list[tuple[Any, str, Any]]] = []
_wrappers: Final[dict[int, tuple[Any, Any, Any]]] = {}
"""Of each place that was found its owner, what stands there, and what does so while somebody checks."""
_users = 0


def place(owner: Callable[[], Any], *names: str) -> Callable[[W], W]:
    """Register `wrapper(original, *args, **kwargs)` for attributes of `owner()`."""

    def register(wrapper: W) -> W:
        for name in names:
            _places.append(Place(owner, name, lambda original: _wrapped(wrapper, original)))
        return wrapper

    return register


def instead(owner: Callable[[], Any], name: str, value: Any) -> None:
    """Register what stands in an attribute of `owner()` in place of what is there."""
    _places.append(Place(owner, name, lambda _: value))


def _wrapped(wrapper: Callable[..., Any], original: Any) -> Any:
    plain, bind = _unbound(original)

    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(plain, *args, **kwargs)

    return bind(call)


def _unbound(original: Any) -> tuple[Callable[..., Any], Callable[[Callable[..., Any]], Any]]:
    """The function of what stands in a place, and what makes its like of a function."""
    if isinstance(original, (classmethod, staticmethod)):
        return original.__func__, type(original)
    if isinstance(original, ClassMethodDescriptorType):  # written in C: `Function.apply`, from torch 2.14 on

        @wraps(original)
        def plain(cls: type, *args: Any, **kwargs: Any) -> Any:
            return original.__get__(None, cls)(*args, **kwargs)

        return plain, classmethod
    return original, lambda call: call


@contextmanager
def intercepted() -> Iterator[None]:
    """Wrap all places until the end of the block; blocks of several threads share the wrapping."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _install()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                for owner, name, original in reversed(_originals):
                    setattr(owner, name, original)
                _originals.clear()


def _install() -> None:
    for each in _places:
        found = _wrappers.get(id(each))
        if found is None or found[0].__dict__.get(each.name, found) is not found[1]:
            owner = each.owner()
            if owner is None or not hasattr(owner, each.name):
                continue
            original = vars(owner).get(each.name, getattr(owner, each.name))
            found = _wrappers[id(each)] = owner, original, each.wrap(original)
        owner, original, wrapper = found
        _originals.append((owner, each.name, original))
        setattr(owner, each.name, wrapper)


def listening(mode: TorchFunctionMode) -> AbstractContextManager[Any]:
    """A block whose calls reach `mode`, also where the engine of autograd runs it from inside a rule."""
    return nullcontext() if mode_is_on() else mode


def mode_is_on() -> bool:
    """Whether calls of this thread reach a mode now: not from inside a rule."""
    return torch._C._len_torch_function_stack() > 0 and not torch._C._is_torch_function_all_disabled()

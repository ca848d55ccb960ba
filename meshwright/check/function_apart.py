"""Calls that the checker makes for itself: no block around them that keeps or recomputes what is saved sees them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _python_dispatch as dispatch
from torch.utils import checkpoint

from meshwright.check.tag import read, write

_SELECTIVE = (checkpoint._CachingTorchDispatchMode, checkpoint._CachedTorchDispatchMode)


def is_kept_elsewhere() -> bool:
    """Whether a block around this call keeps something else in place of what is saved."""
    return _hooks() is not None


@contextmanager
def apart() -> Iterator[None]:
    """Without hooks of saved tensors and without what counts the ops of a recomputed block, which are there again after
    it; and what is random after it is what it would have been.
    """
    hooks = []
    while (innermost := _hooks()) is not None:
        hooks.append(innermost)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    modes = dispatch._get_current_dispatch_mode_stack()
    others = [mode for mode in modes if not isinstance(mode, _SELECTIVE)]
    _exchange(modes, others)
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
            yield
    finally:
        _exchange(others, modes)
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def copied(value: Any) -> Any:
    """A tensor of the same type that holds the same, in a graph of its own; what is no tensor as it is."""
    if not isinstance(value, Tensor):
        return value
    with torch._C.DisableTorchFunction():
        made = value.detach().clone().requires_grad_(value.requires_grad).clone()  # no leaf: it may be written in place
    write(made, read(value))
    return made


def _hooks() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _exchange(old: list[Any], new: list[Any]) -> None:
    if old != new:
        for _ in old:
            dispatch._pop_mode()
        for mode in new:
            dispatch._push_mode(mode)

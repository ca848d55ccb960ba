"""Activation checkpointing runs a block again in backward, where no mesh may be current: it runs under the mesh that
was current when the block ran first.

Private names of torch.utils.checkpoint are touched here and nowhere else; `tests/comm/test_recompute.py` holds each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

_MODULES: Final = ("torch.utils.checkpoint", "torch.distributed._composable.checkpoint_activation")
_GENERATORS: Final = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
"""What both modules call with the block first, by its names: the first is there from torch 2.14 on."""

Carry = Callable[[Callable[..., Any]], Callable[..., Any]]
"""A block -> the same block, under the mesh that is current now."""


def follow(carry: Carry) -> None:
    """From now on, checkpointed blocks go through `carry` when they first run. Again and again it changes nothing."""
    for module in filter(None, map(sys.modules.get, _MODULES)):
        function = next((name for name in _GENERATORS if hasattr(module, name)), None)
        if function is not None and not hasattr(getattr(module, function), "_follows_mesh"):
            setattr(module, function, _following(getattr(module, function), 0, carry))
    checkpoint = sys.modules.get("torch.utils.checkpoint")
    reentrant = getattr(checkpoint, "CheckpointFunction", None)
    if reentrant is not None and not hasattr(reentrant.forward, "_follows_mesh"):
        reentrant.forward = staticmethod(_following(reentrant.forward, 1, carry))


def _following(original: Callable[..., Any], place: int, carry: Carry) -> Callable[..., Any]:
    @wraps(original)
    def following(*args: Any, **kwargs: Any) -> Any:
        return original(*args[:place], carry(args[place]), *args[place + 1 :], **kwargs)

    following._follows_mesh = True  # type: ignore[attr-defined]
    return following

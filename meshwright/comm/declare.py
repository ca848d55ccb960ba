"""`assert_type`: what the author says of a tensor, for whoever checks it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from meshwright.types.kinds import SpmdType


def assert_type(x: Tensor, types: Mapping[str, SpmdType]) -> Tensor:
    """State the type of `x` on some axes; returns `x`.

    Under `typecheck` the type is noted where nothing is known of it and verified where something is. Otherwise
    nothing happens.

    Errors: `SpmdTypeError` where the type is another one, or the axis is not in the current mesh.
    """
    if has_torch_function_unary(x):
        return handle_torch_function(assert_type, (x,), x, types)
    return x

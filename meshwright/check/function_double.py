"""In which precision a Function is tried: in double where it lets itself be, whatever dtypes it asks for inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from meshwright.check.function_collectives import Untried, collective

_LOWER: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})


class Ops(TorchDispatchMode):
    """Sees every op of a thread, and serves collectives by simulated ranks.

    double: each tensor of real numbers is in float64, and asking for a lower precision gives that too: else a small
    step would drown in rounding. Tensors of the program that are written into keep their dtype.
    """

    def __init__(self, double: bool) -> None:
        super().__init__()
        self.double = double

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        kwargs = dict(kwargs or {})
        served = collective(name, (*args, *kwargs.values()))
        if served:
            return served[0]
        if not self.double:
            return func(*args, **kwargs)
        if name == "aten::view" and any(isinstance(each, torch.dtype) for each in (*args, *kwargs.values())):
            raise Untried("it reads the bits of a tensor as another dtype")
        written = {
            argument.name for argument in func._schema.arguments if argument.alias_info and argument.alias_info.is_write
        }
        names = [argument.name for argument in func._schema.arguments]
        args = tuple(
            each if name in written else tree_map(_doubled, each) for name, each in zip(names, args, strict=False)
        )
        kwargs = {name: each if name in written else tree_map(_doubled, each) for name, each in kwargs.items()}
        result = func(*args, **kwargs)
        return result if written else tree_map(_doubled, result)


def _doubled(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(torch.float64) if value.dtype in _LOWER else value
    return torch.float64 if isinstance(value, torch.dtype) and value in _LOWER else value

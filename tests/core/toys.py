"""Modules that show one thing each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.core.init import Computed, Constant, Init
from meshwright.core.module import Module


class Biased(Module):
    """x[N, in] -> x W^T + b[out]: W all ones, b all `bias`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        inputs: int
        outputs: int = 1
        bias: float = 10.0

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.outputs, config.inputs))
        self.bias = nn.Parameter(torch.empty(config.outputs))

    def initializers(self) -> Mapping[str, Init]:
        return {"weight": Constant(1.0), "bias": Constant(self.config.bias)}

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class Calls(Module):
    """Has no states; forward is `fn`. Each class made by `calling` takes the arguments of its own `forward`."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()


def calling(forward: Callable[..., Any], **sharding: Any) -> Module.Config:
    """The config of a module whose forward is `forward` (with self), declared as `sharding` says."""
    from meshwright.core.sharding import ShardingConfig

    kind = type("Called", (Calls,), {"forward": forward, "__module__": __name__, "__qualname__": "Called"})
    return kind.Config(sharding_config=ShardingConfig(**sharding))


class Holds(Module):
    """Parameters and buffers by name and shape; values count up from 0."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        params: Mapping[str, tuple[int, ...]]
        buffers: Mapping[str, tuple[int, ...]]

    def __init__(self, config: Config) -> None:
        super().__init__()
        for name, shape in config.params.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        for name, shape in config.buffers.items():
            self.register_buffer(name, torch.empty(shape))

    def initializers(self) -> Mapping[str, Init]:
        names = (*self.config.params, *self.config.buffers)
        return {name: Computed(lambda index: index.float()) for name in names}

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x


def holding(params: Mapping[str, tuple[int, ...]] | None = None, /, **sharding: Any) -> Holds.Config:
    """The config of a module that holds `params` and, as `buffers=`, buffers, declared as `sharding` says."""
    from meshwright.core.sharding import ShardingConfig

    buffers = sharding.pop("buffers", {})
    return Holds.Config(params=params or {}, buffers=buffers, sharding_config=ShardingConfig(**sharding))

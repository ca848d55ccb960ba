"""The model as on one device: the global shape of all that crosses a module's boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.audit import where
from meshwright.audit.call import Call
from meshwright.comm.scope import View
from meshwright.core.tree import map_tree
from meshwright.errors import ConfigError, MeshwrightError, Problem
from meshwright.models.decoder import Decoder
from meshwright.train.loss import CrossEntropy, fields_of, roots, token_losses
from meshwright.types.layout import SpmdLayout


@dataclass(frozen=True)
class Seen:
    """A tensor at a boundary. shape: global; flows: a gradient comes back through it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    flows: bool

    def part(self, layout: SpmdLayout, view: View) -> tuple[int, ...]:
        """What this rank holds of it."""
        return layout.local_shape(self.shape, view.degree, view.index)

    def empty(self, layout: SpmdLayout, view: View) -> Tensor:
        """This rank's part of it, on meta."""
        return torch.empty(self.part(layout, view), dtype=self.dtype, device="meta", requires_grad=self.flows)


@dataclass(frozen=True)
class Passed:
    """What one call of a module takes, by name, and returns: a tree of `Seen`, None for what is no tensor."""

    inputs: Mapping[str, Seen]
    outputs: Any


def path_of(name: str, module: nn.Module) -> str:
    """How problems name a module: by its path; the root by its class."""
    return name or type(module).__name__


Calls = Mapping[str, Sequence[Passed]]
"""Module path -> what passes through it in each of its calls."""


def passed(model: Decoder, loss: CrossEntropy | None, rows: int, length: int) -> Calls:
    """What passes through every module for `rows` sequences of `length` tokens; model and loss on meta, whole.

    Errors: `ConfigError` where forward fails.
    """
    found: dict[str, list[Passed]] = {}

    def watch(name: str, module: nn.Module) -> None:
        path = path_of(name, module)

        def note(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            call = Call(module, args, kwargs)
            inputs = {name: _seen(value) for name, value in call.tensors()}
            outputs = map_tree(lambda value: _seen(value) if isinstance(value, Tensor) else None, result)
            found.setdefault(path, []).append(Passed(inputs, outputs))

        module.register_forward_hook(note, with_kwargs=True)

    for root in roots(model, loss):
        for name, module in root.named_modules():
            watch(name, module)
    tokens = torch.empty(rows, length, dtype=torch.int64, device="meta")
    try:
        token_losses(model, loss, *[tokens] * fields_of(model))
    except MeshwrightError:
        raise
    except Exception as error:
        raise ConfigError(
            Problem(
                where=f"model: {where.of_error(error)}",
                what=f"forward fails on shapes alone: {type(error).__name__}: {error}",
                why=f"{rows} x {length} tokens were run through the whole model without values",
            )
        ) from error
    return found


def _seen(value: Tensor) -> Seen:
    return Seen(tuple(value.shape), value.dtype, value.requires_grad)

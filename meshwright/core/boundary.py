"""Crossings at a module's boundary: `forward` is wrapped in those that change something, and in nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any, Final

import torch
from torch import Tensor, nn

from meshwright.core.contract import Contract, arguments
from meshwright.core.tree import Unlike, map_tree
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.planner import Transition

Crossing = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Crossings:
    """Who compiles the transitions of a boundary; each gives None where nothing changes.

    argument, state: by its name and its transition. output: by its transition.
    """

    argument: Callable[[str, Transition], Crossing | None]
    state: Callable[[str, Transition], Crossing | None]
    output: Callable[[Transition], Crossing | None]


def install(module: nn.Module, contract: Contract, crossings: Crossings, path: str) -> None:
    """Wrap the module's forward in the crossings of its contract. Without any, forward stays as it is."""
    positions = arguments(module)
    inputs = [
        (positions[name], name, crossing)
        for name, change in contract.inputs.items()
        if (crossing := crossings.argument(name, change))
    ]
    states = [
        (name, crossing) for name, change in contract.states.items() if (crossing := crossings.state(name, change))
    ]
    leaves: list[Crossing] = []

    def compiled(change: Transition | None) -> Crossing:
        leaves.append((change and crossings.output(change)) or _keep)
        return leaves[-1]

    outputs = map_tree(compiled, contract.outputs)
    forward: Callable[..., Any] = type(module).forward
    if inputs:
        forward = _with_inputs(forward, inputs, path)
    if states:
        forward = _with_states(forward, states)
    if any(crossing is not _keep for crossing in leaves):
        forward = _with_output(forward, outputs, path) if callable(outputs) else _with_outputs(forward, outputs, path)
    if forward is not type(module).forward:
        module.forward = MethodType(forward, module)  # bound, so that a copy of the module crosses its own tensors


def _with_inputs(
    forward: Callable[..., Any], inputs: list[tuple[int | None, str, Crossing]], path: str
) -> Callable[..., Any]:
    def crossing_inputs(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        given = list(args)
        for position, name, crossing in inputs:
            if position is not None and position < len(given):
                if given[position] is not None:
                    given[position] = crossing(_argument(given[position], path, name))
            elif kwargs.get(name) is not None:
                kwargs[name] = crossing(_argument(kwargs[name], path, name))
        return forward(self, *given, **kwargs)

    return crossing_inputs


def _with_states(forward: Callable[..., Any], states: list[tuple[str, Crossing]]) -> Callable[..., Any]:
    def crossing_states(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        held = self.__dict__
        outer = {name: held.pop(name) for name, _ in states if name in held}  # of a call that this one is made in
        try:
            for name, crossing in states:
                state = getattr(self, name)
                if state is not None:
                    held[name] = crossing(state)  # an attribute of the instance is found before the registered state
            return forward(self, *args, **kwargs)
        finally:
            for name, _ in states:
                held.pop(name, None)
            held.update(outer)

    return crossing_states


def _with_output(forward: Callable[..., Any], crossing: Crossing, path: str) -> Callable[..., Any]:
    where = f"{path}.sharding_config.out_src_shardings"

    def crossing_output(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return crossing(_output(forward(self, *args, **kwargs), where))

    return crossing_output


def _with_outputs(forward: Callable[..., Any], crossings: Any, path: str) -> Callable[..., Any]:
    where = f"{path}.sharding_config.out_src_shardings"

    def cross(crossing: Crossing, value: Any) -> Any:
        return value if crossing is _keep else crossing(_output(value, where))

    def crossing_outputs(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        value = forward(self, *args, **kwargs)
        try:
            return map_tree(cross, crossings, value)
        except Unlike as error:
            raise SpmdTypeError(Problem(where=where, what=str(error), fix=_LIKE_THE_VALUE)) from None

    return crossing_outputs


def _keep(value: Tensor) -> Tensor:
    return value


def _argument(value: Any, path: str, name: str) -> Tensor:
    if isinstance(value, torch.Tensor):
        return value
    raise _no_tensor(value, f"{path}.{name}", f"a tensor, or a contract without in_src_shardings[{name!r}]")


def _output(value: Any, where: str) -> Tensor:
    if isinstance(value, torch.Tensor):
        return value
    raise _no_tensor(value, where, _LIKE_THE_VALUE)


def _no_tensor(value: Any, where: str, fix: str) -> SpmdTypeError:
    what = f"a layout is declared for a tensor, but it is a {type(value).__name__}"
    return SpmdTypeError(Problem(where=where, what=what, fix=fix))


_LIKE_THE_VALUE: Final = "declare a tree of layouts that is built like the value"

"""The table of collectives at the boundaries of modules, and inside their regions: computed from declared layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import nn

from meshwright.audit.meter import Meter, sent
from meshwright.audit.report import Traffic
from meshwright.audit.whole import Calls, Passed, Seen, path_of
from meshwright.backends.base import Backend
from meshwright.backends.parallelize import States
from meshwright.core.contract import Contract, own_buffers, own_parameters
from meshwright.core.module import Module
from meshwright.core.tree import map_tree
from meshwright.types.planner import Transition


def crossings(
    model: nn.Module,
    states: States,
    backend: Backend,
    passed: Calls,
    times: int,
    precision: torch.dtype | None = None,
) -> Iterator[Traffic]:
    """What the contracts of `model` send in one step of `times` micro-batches.

    precision: of float32 tensors in compute, where it is another.
    """
    names = {id(state): name for name, state in (*model.named_parameters(), *model.named_buffers())}
    for name, module in model.named_modules():
        contract = module.contract if isinstance(module, Module) else None
        if contract is None:
            continue
        path = path_of(name, module)
        for call in passed.get(path, ()):
            for what, change, seen in (*_crossing(contract, call), *_states(module, contract, states, names)):
                yield from _sent(path, what, change, in_compute(seen, precision), backend, times)


def in_compute(seen: Seen, precision: torch.dtype | None) -> Seen:
    """What crosses, in the precision of compute."""
    return replace(seen, dtype=precision) if precision is not None and seen.dtype is torch.float32 else seen


def _crossing(contract: Contract, passed: Passed) -> Iterator[tuple[str, Transition, Seen]]:
    """Inputs and outputs."""
    yield from ((name, contract.inputs[name], seen) for name, seen in passed.inputs.items() if name in contract.inputs)
    leaves: list[tuple[str, Transition, Seen]] = []

    def leaf(change: Transition | None, seen: Seen | None) -> None:
        if change is not None and seen is not None:
            leaves.append(("output", change, seen))

    map_tree(leaf, contract.outputs, passed.outputs if contract.outputs is not None else None)
    yield from leaves


def _states(
    module: nn.Module, contract: Contract, states: States, names: Mapping[int, str]
) -> Iterator[tuple[str, Transition, Seen]]:
    for own, state in (own_parameters(module) | own_buffers(module)).items():
        info = states[names[id(state)]]
        yield own, contract.states[own], Seen(info.shape, state.dtype, info.trained)


def _sent(path: str, what: str, change: Transition, seen: Seen, backend: Backend, times: int) -> Iterator[Traffic]:
    view, current = backend.view, change.src
    for step in change.plan(view.degree):
        following = current.replace(**step.after)
        before, after = (math.prod(seen.part(layout, view)) * seen.dtype.itemsize for layout in (current, following))
        current = following
        ranks = math.prod(view[axis].size for axis in step.axes)
        back = step.backward.op if seen.flows else None
        forward = step.op.value if step.op.communicates else ""
        backward = back.value if back is not None and back.communicates else ""
        if forward or backward:
            yield Traffic(
                module=path,
                what=what,
                axis=" x ".join(step.axes),
                forward=forward,
                backward=backward,
                count=times,
                sent_forward=times * sent(forward, ranks, before),
                sent_backward=times * sent(backward, ranks, after),
            )


def regions(meter: Meter, times: int) -> Iterator[Traffic]:
    """What modules send inside, in one step of `times` micro-batches."""
    for (path, axis, op), (count, size) in meter.calls.items():
        again, back = meter.backward.get((path, axis, op), (0, 0))
        yield Traffic(
            module=path,
            what="inside",
            axis=axis,
            forward=op,
            backward=op if again else "",
            count=times * count,
            sent_forward=times * size,
            sent_backward=times * back,
        )

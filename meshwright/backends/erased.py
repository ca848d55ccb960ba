"""The backend `spmd_types`: the types are erased; compute runs on plain tensors and planned collectives."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from meshwright.backends.base import Backend
from meshwright.backends.storage import Storage
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import View
from meshwright.comm.steps import BoundStep
from meshwright.comm.transport import Alone, Reduction, Transport
from meshwright.core.boundary import Crossing
from meshwright.types.axes import PP
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition


class Erased(Backend):
    """Plain tensors in compute, on every axis of the dense view, and of that of experts where those are spread."""

    def __init__(self, dims: ParallelismDims, view: View, storage: Storage, pipeline: Transport | None = None) -> None:
        self.dims, self.axes, self._view, self._storage = dims, dims.compute, view, storage
        self.pipeline = pipeline or Alone(PP)

    @property
    def view(self) -> View:
        return self._view

    @property
    def storage(self) -> Storage:
        return self._storage

    def state(self, value: Tensor, layout: SpmdLayout) -> Tensor:
        return self._storage.state(value, layout, self.axes)

    def enter(self, value: Tensor, layout: SpmdLayout) -> Tensor:
        return value

    def leave(self, value: Tensor, layout: SpmdLayout) -> Tensor:
        return value

    def cross(self, transition: Transition) -> Crossing | None:
        bound = [BoundStep(step, self._view.joined(step.axes)) for step in transition.plan(self._view.degree)]
        if len(bound) <= 1:
            return bound[0] if bound else None

        def crossing(x: Tensor) -> Tensor:
            for step in bound:
                x = step(x)
            return x

        return crossing

    def total(self, value: Tensor, over: Iterable[str], reduction: Reduction = "sum") -> Tensor:
        for axis in over:
            value = self._view[axis].all_reduce(value, reduction)
        return value

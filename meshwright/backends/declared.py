"""The backend whose boundaries say every declared type out loud, for whoever checks them.

Compute is that of `Erased`. Layouts may name tp or its factors tp_kv and tp_copy, which are the same ranks: types are
stated on axes of which none is a part of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from meshwright.backends.erased import Erased
from meshwright.backends.storage import Storage
from meshwright.comm.declare import assert_type
from meshwright.comm.grid import DENSE, Axes, ParallelismDims
from meshwright.comm.scope import View, set_current_mesh
from meshwright.core.boundary import Crossing
from meshwright.types.axes import CP, DP, TP, TP_COPY, TP_KV
from meshwright.types.kinds import SpmdType
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition


def apart(dims: ParallelismDims) -> Axes:
    """The axes of compute that are on, none of which is a part of another: tp whole, unless ranks share heads."""
    tp = (TP_KV, TP_COPY) if dims.tp_kv > 1 and dims.tp_copy > 1 else (TP,)
    return {axis: DENSE[axis] for axis in (DP, CP, *tp) if axis in dims.active()}


def of_experts(dims: ParallelismDims) -> Axes:
    """The axes of experts that are on; none where those are not spread."""
    sparse = dims.sparse() if dims.ep > 1 else {}
    return {axis: parts for axis, parts in sparse.items() if axis in dims.active(sparse)}


class Declared(Erased):
    """Every tensor that crosses a boundary has its declared type stated before and after, also where nothing changes.

    stated: the axes on which types are stated, each with its transport; `scope` makes them the current mesh. sparse:
    those of experts, on which their layouts are stated.
    """

    def __init__(self, dims: ParallelismDims, view: View, storage: Storage, stated: View, sparse: View) -> None:
        super().__init__(dims, view, storage)
        self.stated, self.sparse = stated, sparse
        self._steps = Erased(dims, stated, storage)

    def mesh_of(self, layout: Mapping[str, SpmdType]) -> View:
        """The axes on which a layout is stated."""
        return self.sparse if any(axis in self.sparse for axis in layout) else self.stated

    def on(self, layout: Mapping[str, SpmdType]) -> SpmdLayout:
        """A layout of the run, on the axes on which types are stated."""
        parts = {axis: [part for part in self.axes[axis] if self.dims.base[part] > 1] for axis in layout}
        return SpmdLayout(
            {
                axis: kind
                for name, kind in layout.items()
                for axis in self.mesh_of(layout)
                if any(part in self.axes[axis] for part in parts[name])
            }
        )

    def states(self, value: Tensor, layout: Mapping[str, SpmdType]) -> Tensor:
        """State the declared type of `value`, and return it.

        Errors: those of whoever checks.
        """
        mesh = self.mesh_of(layout)
        with set_current_mesh(mesh) if mesh is self.sparse else nullcontext():
            return assert_type(value, self.on(layout))

    def carries(self, change: Transition) -> Crossing | None:
        """The steps of a transition, without a word on the types before and after."""
        return self._steps.cross(Transition(self.on(change.src), self.on(change.dst)))

    def cross(self, transition: Transition) -> Crossing:
        steps = self.carries(transition)

        def crossing(x: Tensor) -> Tensor:
            x = self.states(x, transition.src)
            return self.states(steps(x), transition.dst) if steps else x

        return crossing

    def scope(self) -> AbstractContextManager[View]:
        return set_current_mesh(self.stated)

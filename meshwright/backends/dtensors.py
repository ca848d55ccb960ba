"""The backends `full_dtensor` and `partial_dtensor`: compute runs on DTensors, which work out their own placements.

At rest nothing differs from `spmd_types`: the storage, the sums of gradients and the optimizer are the same. On its way
into a module a parameter becomes a DTensor, and its gradient comes back as the plain tensor that the storage knows.
Redistribution happens at declared boundaries alone; an op that would need another one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce, wraps
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor._utils import ExplicitRedistributionContext

from meshwright.backends.erased import Erased
from meshwright.backends.placements import Placements, demand_placed, placements, redistribute, unplaced, unwrap, wrap
from meshwright.backends.rows import LinearByRows
from meshwright.backends.storage import Storage
from meshwright.comm.grid import DENSE, Axes, ParallelismDims
from meshwright.comm.scope import View
from meshwright.comm.transport import Transport
from meshwright.core.boundary import Crossing, Crossings, install
from meshwright.core.contract import Contract
from meshwright.core.tree import map_tree
from meshwright.errors import Problem
from meshwright.types.axes import TP, TP_COPY, TP_KV
from meshwright.types.kinds import P, R, S, Shard
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition


class DTensors(Erased):
    """Compute on DTensors over the axes `tracked`; on the others plain tensors and planned collectives.

    mesh: over all base axes of a stage that are on. Where no tracked axis is on there is no DTensor at all.
    """

    tracked: ClassVar[frozenset[str]]

    def __init__(
        self,
        dims: ParallelismDims,
        view: View,
        storage: Storage,
        mesh: DeviceMesh | None,
        pipeline: Transport | None = None,
    ) -> None:
        super().__init__(dims, view, storage, pipeline)
        parts = {part for axis in self.tracked for part in self.axes[axis] if dims.base[part] > 1}
        all_names = mesh.mesh_dim_names or () if mesh else ()
        names = tuple(name for name in all_names if name in parts)
        self.mesh = mesh[names] if mesh and names and names != all_names else mesh if names else None

    def _tracked(self, layout: SpmdLayout) -> SpmdLayout:
        return layout.only(lambda axis: axis in self.tracked)

    def _placed(self, layout: SpmdLayout) -> Placements:
        assert self.mesh is not None
        return placements(self._tracked(layout), self.axes, self.mesh)

    def enter(self, value: Tensor, layout: SpmdLayout) -> Tensor:
        return self._wraps(layout.only(lambda axis: axis in self.dims.active()), "the input")(value)

    def leave(self, value: Tensor, layout: SpmdLayout) -> Tensor:
        held = layout.only(self.dims.active().__contains__)
        if self.mesh is None:
            return value
        return unwrap(demand_placed(value, self._placed(held), "what leaves compute"), self._placed(held.dual))

    @classmethod
    def problems(cls, model: nn.Module, axes: Axes) -> list[Problem]:
        """The declared layouts of `model`, whose contracts are compiled, that no DTensor has."""
        found = []
        for path, module in model.named_modules():
            contract = getattr(module, "contract", None)
            for field, layout in _declared(contract) if contract is not None else ():
                tracked = layout.only(cls.tracked.__contains__)
                found += unplaced(tracked, axes, f"{path or type(module).__name__}.sharding_config.{field}")
        return list(dict.fromkeys(found))

    def install(self, module: nn.Module, contract: Contract, path: str) -> None:
        if self.mesh is None:
            super().install(module, contract, path)
        elif contract.region is None:
            install(module, contract, self._boundary(path), path)
            if contract.states and any(self._cuts_sequence(change.dst) for change in contract.inputs.values()):
                module.forward = _by_rows(module.forward)
        else:
            install(module, contract, self._region(path), path)

    def _cuts_sequence(self, layout: SpmdLayout) -> bool:
        return any(kind == S(1) for kind in self._tracked(layout).values())

    def _boundary(self, path: str) -> Crossings:
        """Around a forward on DTensors."""

        def argument(name: str, change: Transition) -> Crossing:
            return self._carries(change, _argument(path, name))

        def state(name: str, change: Transition) -> Crossing:
            return _chain(self.cross(change), self._wraps(change.dst, f"{path}.{name}"))

        def output(change: Transition) -> Crossing:
            return self._carries(change, f"{path}: what forward returns")

        return Crossings(argument, state, output)

    def _region(self, path: str) -> Crossings:
        """Around a forward on plain tensors, whose states are plain already."""

        def argument(name: str, change: Transition) -> Crossing:
            return _chain(self._carries(change, _argument(path, name)), self._unwraps(change.dst))

        def output(change: Transition) -> Crossing:
            what = f"{path}: what forward returns"
            return _chain(self._wraps(change.src, what), self._carries(change, what))

        return Crossings(argument, lambda name, change: self.cross(change), output)

    def _wraps(self, layout: SpmdLayout, what: str) -> Crossing:
        mesh = self.mesh
        if mesh is None:
            return _same
        forth, back = self._placed(layout), self._placed(layout.dual)
        return lambda x: wrap(x, mesh, forth, back, what)

    def _unwraps(self, layout: SpmdLayout) -> Crossing:
        back = self._placed(layout.dual)
        return lambda x: unwrap(x, back)

    def _carries(self, change: Transition, what: str) -> Crossing:
        """From DTensor to DTensor; one that lies otherwise than declared is refused, also where nothing changes."""
        between = SpmdLayout({axis: (change.dst if axis in self.tracked else change.src)[axis] for axis in change.src})
        demanded = self._placed(change.src)
        steps = [self._moves(change.src, between, what), self._moves(between, change.dst, what)]
        return _chain(lambda x: demand_placed(x, demanded, what), *steps)

    def _moves(self, src: SpmdLayout, dst: SpmdLayout, what: str) -> Crossing | None:
        """DTensor's own redistribution, or the planned steps on its local tensor where it has none: on axes that it
        does not know, and from R to shards, whose gradient is a sum with one part a rank."""
        if src is dst:
            return None
        if self._tracked(src) is self._tracked(dst) or any(
            src[axis] is R and (isinstance(dst[axis], Shard) or dst[axis] is P) for axis in src
        ):
            return _chain(self._unwraps(src), self.cross(Transition(src, dst)), self._wraps(dst, what))
        forth, arrives, back = self._placed(dst), self._placed(dst.dual), self._placed(src.dual)
        return lambda x: redistribute(x, forth, arrives, back, what)

    @contextmanager
    def scope(self) -> Iterator[View]:
        with super().scope() as view, ExplicitRedistributionContext(strict=True):
            yield view


class FullDTensor(DTensors):
    """Every tensor of compute is a DTensor on all axes that are on."""

    tracked = frozenset(DENSE)


class PartialDTensor(DTensors):
    """DTensors over tp alone: data axes and cp are out of band."""

    tracked = frozenset({TP, TP_KV, TP_COPY})


def _declared(contract: Contract) -> Iterator[tuple[str, SpmdLayout]]:
    """Each declared layout with its field."""
    for name, change in contract.inputs.items():
        yield f"in_src_shardings[{name!r}]", change.src
        yield f"in_dst_shardings[{name!r}]", change.dst
    for name, change in contract.states.items():
        yield f"state_shardings[{name!r}]", change.dst
    outputs: list[Transition] = []
    map_tree(lambda change: outputs.append(change) if change is not None else None, contract.outputs)
    for change in outputs:
        yield "out_src_shardings", change.src
        yield "out_dst_shardings", change.dst


def _by_rows(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Around the call itself, since a checkpointed block runs again in another thread."""

    @wraps(forward)
    def by_rows(*args: Any, **kwargs: Any) -> Any:
        with LinearByRows():
            return forward(*args, **kwargs)

    return by_rows


def _argument(path: str, name: str) -> str:
    """How an error names an argument of a module: by its path, and the field that declares it."""
    return f"{path}: argument {name!r}, declared by sharding_config.in_src_shardings[{name!r}]"


def _chain(*crossings: Crossing | None) -> Crossing:
    """One after the other, without those that are None."""
    found = [crossing for crossing in crossings if crossing is not None and crossing is not _same]
    return found[0] if len(found) == 1 else lambda x: reduce(lambda value, crossing: crossing(value), found, x)


def _same(x: Tensor) -> Tensor:
    return x

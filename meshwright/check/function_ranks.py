"""The ranks on which a Function is tried: those of the axes that it runs over, simulated in this process."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from meshwright.check.function_collectives import Untried, serving
from meshwright.check.function_double import Ops
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import current_mesh, set_current_mesh
from meshwright.comm.shapes import Shapes
from meshwright.comm.threads import run_ranks
from meshwright.comm.transport import Alone, Transport
from meshwright.comm.view import View
from meshwright.types.axes import CP, DP_REPLICATE, DP_SHARD, PP, TP_KV
from meshwright.types.kinds import P, Shard, V
from meshwright.types.layout import SpmdLayout

T = TypeVar("T")

_MOST: Final = 16
"""Simulated ranks at once."""
_BASE: Final = {"pp": PP, "dp_replicate": DP_REPLICATE, "dp_shard": DP_SHARD, "cp": CP, "tp": TP_KV}
"""Degree -> base axis, of a mesh of ranks that stand for any axes."""

_trials = 0


@contextmanager
def trial() -> Iterator[None]:
    """What runs in the block is no part of the program."""
    global _trials
    _trials += 1
    try:
        yield
    finally:
        _trials -= 1


def is_trial() -> bool:
    """Whether what runs now is tried by the checker, and is no part of the program."""
    return _trials > 0


class _Noted(Shapes):
    """The ranks of an axis, as far as shapes tell; notes its name once anybody asks for its size or place."""

    def __init__(self, name: str, like: Transport, used: dict[str, None]) -> None:
        super().__init__(name, like.size, like.index, like.axes)
        self.mesh_axis, self._used = like.mesh_axis, used

    def __getattribute__(self, name: str) -> Any:
        if name in ("size", "index", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "recv"):
            used = self.__dict__.get("_used")
            if used is not None:
                used[self.__dict__["name"]] = None
        return super().__getattribute__(name)


def axes_used(mesh: View, program: Callable[[], object]) -> tuple[str, ...]:
    """The axes of more than one rank over which a program exchanges anything, or on which it asks for its place.

    All of them where it does not run when only shapes are known of the others.

    Errors: `Untried` for a collective that simulated ranks do not have.
    """
    degree = mesh.degree
    used: dict[str, None] = {}
    noted: dict[str, Transport] = {
        axis: _Noted(axis, transport, used) if axis in degree else Alone(axis) for axis, transport in mesh.items()
    }

    def join(axes: tuple[str, ...]) -> Transport:
        place = 0
        for axis in axes:
            place = place * noted[axis].size + noted[axis].index
        return Shapes(",".join(axes), math.prod(degree[axis] for axis in axes), place)

    try:
        with set_current_mesh(View(noted, join)), serving(mesh), Ops(double=False):
            program()
    except Untried:
        raise
    except Exception:
        return tuple(degree)
    return tuple(axis for axis in degree if axis in used)


@dataclass(frozen=True)
class Ranks:
    """degree: axis -> simulated ranks, of the axes that are used; mesh: the program's."""

    degree: Mapping[str, int]
    mesh: View

    @property
    def places(self) -> list[dict[str, int]]:
        """Axis -> place, of each rank in turn."""
        return [
            dict(zip(self.degree, each, strict=True)) for each in itertools.product(*map(range, self.degree.values()))
        ]

    def run(self, double: bool, program: Callable[[dict[str, int]], T]) -> list[T]:
        """`program(place)` on every rank, in the order of `places`.

        Errors: `Untried` where it fails on any.
        """

        def alone(place: dict[str, int]) -> T:
            with serving(self.mesh), Ops(double), torch._C.DisableTorchFunction():
                return program(place)

        def one_of(rank: int) -> tuple[dict[str, int], T]:
            view = current_mesh()
            assert view is not None
            for axis, transport in view.items():
                transport.mesh_axis = self.mesh[axis].mesh_axis
            place = {axis: view[axis].index for axis in self.degree}
            return place, alone(place)

        try:
            if not self.degree:
                with set_current_mesh(View({axis: Alone(axis) for axis in self.mesh})):
                    return [alone({})]
            slots = dict(zip(self.degree, _BASE, strict=False))
            dims = ParallelismDims(**{slot: self.degree[axis] for axis, slot in slots.items()})
            axes = {axis: (_BASE[slots[axis]],) if axis in slots else () for axis in self.mesh}
            found = run_ranks(dims, one_of, axes)
        except Untried:
            raise
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            on = f" on simulated ranks of {', '.join(map(repr, self.degree))}" if self.degree else ""
            raise Untried(f"its trial{on} fails: {type(error).__name__}: {text}") from error
        return [next(result for place, result in found if place == each) for each in self.places]


def ranks_of(mesh: View, used: Sequence[str]) -> Ranks:
    """As many ranks as the axes have; fewer of each where those are many.

    Errors: `Untried` where neither can be simulated.
    """
    degree = {axis: mesh.degree[axis] for axis in used}
    patterns = [pattern for axis in used if (pattern := mesh[axis].mesh_axis) is not None]
    others = [rank for pattern in patterns for rank in pattern.ranks(0)[1:]]
    if len(set(others)) < len(others):
        raise Untried("the axes that it runs over have ranks in common")
    if math.prod(degree.values()) > _MOST:
        degree = {axis: next(n for n in range(2, size + 1) if size % n == 0) for axis, size in degree.items()}
    if len(degree) > len(_BASE) or math.prod(degree.values()) > _MOST:
        raise Untried(f"it runs over more ranks than are simulated, {_MOST}")
    return Ranks(degree, mesh)


def varying(layout: SpmdLayout, place: Mapping[str, int]) -> tuple[int, ...]:
    """The places on the axes on which ranks hold other values."""
    return tuple(place[axis] for axis in place if isinstance(layout.get(axis), Shard) or layout.get(axis) in (V, P))


def held(x: Tensor, wanted: bool, layout: SpmdLayout, place: Mapping[str, int], number: int) -> Tensor:
    """What the rank at `place` holds of an argument of which this rank holds `x`, the argument `number` of its call.

    Where the ranks hold other values they are drawn from those of `x`, or made up where it has none; whole numbers are
    its own rows in another order, or the same if they are sorted.

    Errors: `Untried` where whole numbers are cut unevenly.
    """
    shape, key = list(x.shape), varying(layout, place)
    for axis, at in place.items():
        kind = layout.get(axis)
        if isinstance(kind, Shard) and kind.sizes is not None:
            if len(set(kind.sizes)) > 1 and not x.is_floating_point():
                raise Untried("its whole numbers are cut unevenly")
            shape[kind.dim] = kind.sizes[at] if len(set(kind.sizes)) > 1 else shape[kind.dim]
    generator = torch.Generator().manual_seed(seed(number, *key))
    if not x.is_floating_point():
        rows = x.dim() > 0 and not (x.dim() == 1 and bool((x[1:] >= x[:-1]).all()))
        return x.roll(sum(key), 0) if rows else x
    if x.is_meta:
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    flat = x.detach().reshape(-1).double()
    if wanted and not flat.any():  # what multiplies it would not show
        return torch.empty(shape, dtype=torch.float64).uniform_(0.1, 1, generator=generator).to(x.device)
    if (not any(key) and list(x.shape) == shape) or not x.numel():
        return x.detach().double()
    chosen = torch.randint(flat.numel(), shape, generator=generator)
    scale = torch.empty(shape, dtype=torch.float64).uniform_(0.6, 1, generator=generator)
    return flat[chosen.to(x.device)] * scale.to(x.device)


def drawn(shape: Sequence[int], like: Tensor, *key: int) -> Tensor:
    """Random numbers in double precision, the same for the same key."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed(*key)), dtype=torch.float64)
    return made if like.is_meta else made.to(like.device)


def seed(*key: int) -> int:
    """A seed for each key."""
    return hash(key) & 0x7FFFFFFF

"""Who is where on the device mesh: degrees, ranks, views. Arithmetic only; no process group, no device.

Ranks are laid out over the base axes in the order pp, dp_replicate, dp_shard, dp_shard_ep, cp, tp_kv, tp_copy, the
last running fastest. A *view* names axes over the same ranks: each is a run of base axes, flattened. Base axes are as
fine as the views need: dp_shard_ep is the part of dp_shard that ep takes, and base axis dp_shard what is left of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

from meshwright.codes import Code
from meshwright.comm.mesh_axis import MeshAxis
from meshwright.errors import ConfigError, Problem, either, nearest
from meshwright.types.axes import CP, DP, DP_REPLICATE, DP_SHARD, EFSDP, EP, PP, TP, TP_COPY, TP_KV
from meshwright.types.layout import SpmdLayout

DP_SHARD_EP: Final = "dp_shard_ep"
"""The base axis of the dp_shard ranks that hold different experts."""
BASE: Final = (PP, DP_REPLICATE, DP_SHARD, DP_SHARD_EP, CP, TP_KV, TP_COPY)
"""The base axes, outermost first."""

Axes = Mapping[str, tuple[str, ...]]
"""Axis of a view -> the base axes that it flattens."""

DENSE: Final[Axes] = MappingProxyType(
    {DP: (DP_REPLICATE, DP_SHARD, DP_SHARD_EP), CP: (CP,), TP: (TP_KV, TP_COPY), TP_KV: (TP_KV,), TP_COPY: (TP_COPY,)}
)
"""What forward and backward see. A layout names tp, or its factors tp_kv and tp_copy."""
STORAGE: Final[Axes] = MappingProxyType(
    {DP_REPLICATE: (DP_REPLICATE,), DP_SHARD: (DP_SHARD, DP_SHARD_EP), CP: (CP,), TP: (TP_KV, TP_COPY)}
)
"""What parameters are stored on: every dense parameter is split over dp_shard."""
LOSS: Final[Axes] = MappingProxyType({"loss": (DP_REPLICATE, DP_SHARD, DP_SHARD_EP, CP)})
"""All ranks with different tokens as one axis: over it the loss is summed."""
PIPELINE: Final[Axes] = MappingProxyType({PP: (PP,)})
"""The ranks that hold different layers."""
WORLD: Final[Axes] = MappingProxyType({"world": BASE})
"""All ranks as one axis."""


MOST: Final = 1_000_000
"""Ranks of an axis: more than any machine has."""


@dataclass(frozen=True, kw_only=True)
class ParallelismDims:
    """How many ranks each base axis has; 1 means that the axis is off.

    A layout may name axes that are off: they are left out of it. `tp_copy` of the `tp` ranks are neighbours that
    share key/value heads; it divides `tp`. `ep` takes whole inner axes: tp, then cp, then a part of dp_shard.
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    tp_copy: int = 1
    pp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        problems = [
            Problem(
                where=f"parallel.{field.name}",
                what=f"{getattr(self, field.name)} ranks",
                why="a degree counts the ranks of an axis; 1 turns the axis off",
                fix=f"--parallel.{field.name.replace('_', '-')} from 1 to {MOST}",
            )
            for field in fields(self)
            if not 1 <= getattr(self, field.name) <= MOST
        ]
        if not problems and self.tp % self.tp_copy:
            problems = [
                Problem(
                    where="parallel.tp",
                    what=f"{self.tp} ranks cannot form groups of {self.tp_copy} that share key/value heads",
                    fix=f"--parallel.tp {self.tp_copy}, or a multiple of it",
                )
            ]
        if not problems and self.ep not in self.expert_degrees:
            problems = [
                Problem(
                    where="parallel.ep",
                    what=f"{self.ep} ranks are no whole part of dp_shard {self.dp_shard} x cp {self.cp} x tp {self.tp}",
                    why="experts are spread over neighbours: all of tp, then all of cp, then a part of dp_shard",
                    fix=f"--parallel.ep {either(self.expert_degrees)}",
                )
            ]
        if problems:
            raise ConfigError(problems)

    @property
    def expert_degrees(self) -> list[int]:
        """The numbers of ranks over which experts can be spread here."""
        inner = self.cp * self.tp
        parts = [inner * part for part in range(1, self.dp_shard + 1) if self.dp_shard % part == 0]
        return sorted({1, self.tp_copy, self.tp, *parts})

    @property
    def dp_shard_ep(self) -> int:
        """The number of dp_shard ranks that hold different experts."""
        return max(1, self.ep // (self.cp * self.tp))

    def sparse(self) -> Axes:
        """What experts see: dp_replicate, efsdp and ep. efsdp is what ep leaves of dp_shard, cp and tp."""
        inner, ranks = len(BASE), 1
        while ranks < self.ep:
            inner -= 1
            ranks *= self.base[BASE[inner]]
        return {DP_REPLICATE: (DP_REPLICATE,), EFSDP: BASE[BASE.index(DP_SHARD) : inner], EP: BASE[inner:]}

    @property
    def compute(self) -> Axes:
        """All axes that the layouts of a run may name: the dense ones and, where experts are spread, the sparse."""
        return DENSE if self.ep == 1 else {**DENSE, **self.sparse()}

    def view_of(self, layout: Mapping[str, object]) -> Axes:
        """The view whose axes a layout names: that of experts, or the dense one."""
        sparse = self.sparse()
        return sparse if any(axis in sparse for axis in layout) else DENSE

    def mesh_axis(self, parts: tuple[str, ...], name: str = "") -> MeshAxis:
        """Which ranks the base axes `parts` join."""
        strides, stride = {}, 1
        for axis, degree in reversed(self.base.items()):
            strides[axis] = stride
            stride *= degree
        return MeshAxis(tuple((self.base[part], strides[part]) for part in parts), name)

    @property
    def tp_kv(self) -> int:
        """The number of groups of tp ranks that hold different key/value heads."""
        return self.tp // self.tp_copy

    @property
    def world(self) -> int:
        """The number of ranks."""
        return math.prod(self.base.values())

    @property
    def base(self) -> dict[str, int]:
        """Base axis -> degree, outermost first."""
        return {axis: getattr(self, axis) for axis in BASE} | {DP_SHARD: self.dp_shard // self.dp_shard_ep}

    def degrees(self, axes: Axes = DENSE) -> dict[str, int]:
        """Axis of the view -> degree."""
        base = self.base
        return {axis: math.prod(base[part] for part in parts) for axis, parts in axes.items()}

    def active(self, axes: Axes = DENSE) -> frozenset[str]:
        """The axes of the view that have more than one rank."""
        return frozenset(axis for axis, degree in self.degrees(axes).items() if degree > 1)

    def index(self, rank: int, axes: Axes = DENSE) -> dict[str, int]:
        """Axis of the view -> the place of `rank` on it."""
        place = self._place(rank)
        return {axis: self._flat(place, parts) for axis, parts in axes.items()}

    def peers(self, rank: int, parts: tuple[str, ...]) -> tuple[int, ...]:
        """The ranks that differ from `rank` only on the base axes `parts`, in the order of their index there."""
        place = self._place(rank)
        alike = [other for other in range(self.world) if self._agree(place, self._place(other), parts)]
        return tuple(sorted(alike, key=lambda other: self._flat(self._place(other), parts)))

    def check_world(self, world: int, where: str) -> None:
        """Errors: `ConfigError` where the degrees do not multiply to `world` ranks."""
        if self.world == world:
            return
        product = str(self)
        others = self.world // self.dp_shard
        fix = (
            f"--parallel.dp-shard {world // others}"
            if world % others == 0
            else f"start {self.world} processes, or choose degrees that multiply to {world}"
        )
        raise ConfigError(
            Problem(
                where=where, what=f"{product} = {self.world} ranks, but the world has {world}", why=_WHY_WORLD, fix=fix
            )
        )

    def __str__(self) -> str:
        degrees = {axis: getattr(self, axis) for axis in (PP, DP_REPLICATE, DP_SHARD, CP, TP)}
        return " x ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1) or "one rank"

    @property
    def shown(self) -> str:
        """The degrees and the number of ranks that they make, with how many of those hold different experts."""
        ranks = f"{self} = {self.world} ranks" if self.world > 1 else str(self)
        return f"{ranks}, ep {self.ep}" if self.ep > 1 else ranks

    def _place(self, rank: int) -> dict[str, int]:
        place = {}
        for axis, degree in reversed(self.base.items()):
            rank, place[axis] = divmod(rank, degree)
        return place

    def _flat(self, place: Mapping[str, int], parts: tuple[str, ...]) -> int:
        flat = 0
        for part in parts:
            flat = flat * self.base[part] + place[part]
        return flat

    def _agree(self, place: Mapping[str, int], other: Mapping[str, int], parts: tuple[str, ...]) -> bool:
        return all(place[axis] == other[axis] for axis in BASE if axis not in parts)


def lower(layout: SpmdLayout, axes: Axes) -> SpmdLayout:
    """A layout on the axes of a view, on the base axes that they flatten."""
    return SpmdLayout({part: kind for axis, kind in layout.items() for part in axes[axis]})


_WHY_WORLD: Final = "every rank has one place on the mesh"


def unknown_axis(axis: str, known: tuple[str, ...]) -> Problem:
    """What to say of an axis name that a view does not have."""
    return Problem(
        where=f"axis {axis!r}",
        what=f"no such axis here{nearest(axis, known)}",
        why="axis names are looked up in the current mesh",
        fix=f"one of {', '.join(map(repr, known)) or 'none: enter a mesh with set_current_mesh(...)'}",
        code=Code.MESH,
    )

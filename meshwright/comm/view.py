"""`View`: named axes over the same ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshwright.codes import Code
from meshwright.comm.grid import unknown_axis
from meshwright.comm.mesh_axis import MeshAxis
from meshwright.comm.transport import Alone, Transport
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import MAPPING, demand, shown

Axis = str | MeshAxis | dist.ProcessGroup | DeviceMesh
"""How a call says which axis is meant: by name, or by the ranks that it joins."""


class View(Mapping[str, Transport]):
    """A set of named axes over the same ranks, each with its transport.

    join: makes the transport of several axes, flattened in the order given; each has more than one rank.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # a view is one rank's place among others: itself, not what it maps

    def __init__(
        self, transports: Mapping[str, Transport], join: Callable[[tuple[str, ...]], Transport] | None = None
    ) -> None:
        demand("View", "transports", transports, MAPPING)
        self._transports = dict(transports)
        self.named: Mapping[Any, Transport] = self._transports
        self._join = join
        self._joined: dict[tuple[str, ...], Transport] = {}
        self._found: dict[Any, Transport] = {}
        self.bound: dict[Any, Any] = {}  # plans already bound to this view, see calls.py

    def __getitem__(self, axis: str) -> Transport:
        try:
            return self._transports[axis]
        except KeyError:
            raise SpmdTypeError(unknown_axis(axis, tuple(self._transports))) from None

    def find(self, axis: Axis) -> Transport:
        """The axis of this name, or the one that joins the same ranks.

        Errors: `SpmdTypeError` where the view has none.
        """
        if isinstance(axis, str):
            return self[axis]
        found = self._found.get(axis)
        if found is None:
            pattern = mesh_axis(axis)
            alike = [each for each in self._transports.values() if each.mesh_axis == pattern]
            if not alike:
                raise SpmdTypeError(_no_such_ranks(pattern, self._transports))
            found = self._found[axis] = alike[0]
        return found

    def joined(self, axes: tuple[str, ...]) -> Transport:
        """The ranks of several axes as one, the first axis outermost. Every rank asks for the same, in one order.

        Errors: `SpmdTypeError` for an axis that the view does not have, and where it cannot join axes.
        """
        found = self._joined.get(axes)
        if found is None:
            on = tuple(axis for axis in axes if self[axis].size > 1)
            if len(on) > 1 and self._join is None:
                raise SpmdTypeError(_apart(on))
            if len(on) > 1 and self._join is not None:
                found = self._join(on)
            else:
                found = self[on[0]] if on else self[axes[0]] if len(axes) == 1 else Alone(",".join(axes))
            self._joined[axes] = found
        return found

    def __contains__(self, axis: object) -> bool:
        return axis in self._transports

    def __iter__(self) -> Iterator[str]:
        return iter(self._transports)

    def __len__(self) -> int:
        return len(self._transports)

    def __repr__(self) -> str:
        return "View(" + ", ".join(f"{name} {axis.size}" for name, axis in self.items()) + ")"

    @property
    def degree(self) -> dict[str, int]:
        """Axis -> number of ranks, for the axes that are on."""
        return {name: axis.size for name, axis in self.items() if axis.size > 1}

    @property
    def index(self) -> dict[str, int]:
        """Axis -> this rank's place on it, for the axes that are on."""
        return {name: axis.index for name, axis in self.items() if axis.size > 1}


def _apart(axes: tuple[str, ...]) -> Problem:
    return Problem(
        where=f"axes {', '.join(map(repr, axes))}",
        what="this view has no group over these axes together",
        why="a step over several axes is one collective over all their ranks",
        fix="View(transports, join=...), or a view of ProcessGroups, shape_view or run_ranks",
        code=Code.MESH,
    )


def mesh_axis(axis: MeshAxis | dist.ProcessGroup | DeviceMesh) -> MeshAxis:
    """The ranks of a process group or of a device mesh of one dim.

    Errors: `SpmdTypeError` for a device mesh of several dims, and for what names no axis.
    """
    if isinstance(axis, MeshAxis):
        return axis
    if not isinstance(axis, DeviceMesh | dist.ProcessGroup):
        raise no_axis(axis)
    if isinstance(axis, DeviceMesh):
        if axis.ndim != 1:
            raise SpmdTypeError(
                Problem(
                    where="axis",
                    what=f"a device mesh of {axis.ndim} dims is no axis",
                    why="a type is on one axis",
                    fix=f"mesh[{(axis.mesh_dim_names or ('name',))[0]!r}], one of its dims",
                    code=Code.MESH,
                )
            )
        axis = axis.get_group()
    return MeshAxis.of(axis)


def no_axis(given: object) -> SpmdTypeError:
    """What to say of an axis that is none of the things that name one."""
    return SpmdTypeError(
        Problem(
            where="axis",
            what=f"{shown(given)} names no axis",
            why="an axis is meant by its name, or by the ranks that it joins",
            fix='"tp"; or a MeshAxis, a process group or a device mesh of one dim',
            code=Code.MESH,
        )
    )


def _no_such_ranks(pattern: MeshAxis, known: Mapping[str, Transport]) -> Problem:
    return Problem(
        where=f"axis {pattern.name!r}" if pattern.name else repr(pattern),
        what=f"no axis of the current mesh joins the ranks of {pattern!r}",
        why="axes are looked up in the current mesh",
        fix=f"one of {', '.join(f'{name!r} {each.mesh_axis or each.size}' for name, each in known.items())}",
        code=Code.MESH,
    )

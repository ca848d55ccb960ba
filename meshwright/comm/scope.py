"""The ambient mesh: which view axis names are looked up in. One stack a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from meshwright.comm.grid import unknown_axis
from meshwright.comm.transport import Transport
from meshwright.errors import Problem, SpmdTypeError


class View(Mapping[str, Transport]):
    """A set of named axes over the same ranks, each with its transport."""

    def __init__(self, transports: Mapping[str, Transport]) -> None:
        self._transports = dict(transports)

    def __getitem__(self, axis: str) -> Transport:
        try:
            return self._transports[axis]
        except KeyError:
            raise SpmdTypeError(unknown_axis(axis, tuple(self._transports))) from None

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


class _Stack(threading.local):
    def __init__(self) -> None:
        self.views: list[View] = []


_stack = _Stack()


def current_mesh() -> View | None:
    """The view on top of this thread's stack; None outside every `set_current_mesh`."""
    return _stack.views[-1] if _stack.views else None


@contextmanager
def set_current_mesh(view: View) -> Iterator[View]:
    """Look axis names up in `view` until the end of the block; blocks nest."""
    _stack.views.append(view)
    try:
        yield view
    finally:
        _stack.views.pop()


def axis(name: str) -> Transport:
    """The axis `name` of the current mesh.

    Errors: `SpmdTypeError` outside every mesh, and for a name that the current mesh does not have.
    """
    view = current_mesh()
    if view is None:
        raise SpmdTypeError(
            Problem(
                where=f"axis {name!r}",
                what="no mesh is current",
                why="axis names are looked up in the current mesh",
                fix="with set_current_mesh(view): ... around the call",
            )
        )
    return view[name]


def axis_index(name: str) -> int:
    """This rank's place on the axis `name` of the current mesh."""
    return axis(name).index


def axis_size(name: str) -> int:
    """The number of ranks on the axis `name` of the current mesh."""
    return axis(name).size

"""The ambient mesh: which view axis names are looked up in. One stack a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import handle_torch_function, has_torch_function_unary

from meshwright.codes import Code
from meshwright.comm.followed import whole
from meshwright.comm.meshes import Meshlike, bare, view_of
from meshwright.comm.number import Origin, Source
from meshwright.comm.recompute import follow
from meshwright.comm.transport import Transport
from meshwright.comm.view import Axis, no_axis
from meshwright.comm.view import View as View
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import shown


class _Stack(threading.local):
    def __init__(self) -> None:
        self.views: list[View] = []


_stack = _Stack()


def current_mesh() -> View | None:
    """The view on top of this thread's stack; None outside every `set_current_mesh`.

    It maps all names that may be used to their ranks, axes of one rank included.
    """
    views = _stack.views
    return views[-1] if views else None


@contextmanager
def set_current_mesh(axes: Meshlike) -> Iterator[View]:
    """Look names up in `axes` until the end of the block; blocks nest, and each thread has its own.

    axes: a view; a device mesh with names; {name: MeshAxis, process group or transport}; or process groups alone. A
    `MeshAxis` becomes a group of its ranks where processes are initialised, and else one that only knows shapes, as
    rank 0 sees it. Calls made in the block stay bound to the mesh: their backward may run after it, on any thread.
    """
    follow(_carried)
    view = view_of(axes)
    _stack.views.append(view)
    try:
        yield view
    finally:
        _stack.views.pop()


def _carried(block: Callable[..., Any]) -> Callable[..., Any]:
    """The block, under the meshes that are current now wherever it runs."""
    views = list(_stack.views)
    if not views:
        return block

    @wraps(block)
    def carried(*args: Any, **kwargs: Any) -> Any:
        outside, _stack.views = _stack.views, list(views)
        try:
            return block(*args, **kwargs)
        finally:
            _stack.views = outside

    return carried


def find(axis: Axis) -> Transport:
    """The axis of the current mesh that is meant by its name or by its ranks. A process group needs no mesh.

    Errors: `SpmdTypeError` where the current mesh has none, and for a name outside every mesh.
    """
    views = _stack.views
    if views:
        try:
            named = views[-1].named.get(axis)
        except TypeError:  # a name, and ranks, can be a key
            raise no_axis(axis) from None
        return views[-1].find(axis) if named is None else named
    if isinstance(axis, dist.ProcessGroup | DeviceMesh):
        return bare(axis)
    return mesh_of(f"axis {axis!r}").find(axis)


def axis(name: str) -> Transport:
    """The axis `name` of the current mesh.

    Errors: `SpmdTypeError` outside every mesh, and for a name that the current mesh does not have.
    """
    return mesh_of(f"axis {name!r}")[name]


def mesh_of(where: str) -> View:
    """The current mesh.

    Errors: `SpmdTypeError` at `where` outside every mesh.
    """
    view = current_mesh()
    if view is None:
        raise SpmdTypeError(
            Problem(
                where=where,
                what="no mesh is current",
                why="axis names are looked up in the current mesh",
                fix="with set_current_mesh(view): ... around the call",
                code=Code.MESH,
            )
        )
    return view


def joined(names: tuple[str, ...]) -> Transport:
    """Several axes of the current mesh as one, the first outermost.

    Errors: `SpmdTypeError` outside every mesh, and for a name that the current mesh does not have.
    """
    if len(names) == 1:
        return axis(names[0])
    return mesh_of(f"axis {names[0]!r}").joined(names)


def axis_index(axis: Axis) -> int:
    """This rank's place on an axis of the current mesh; a number that is another one on each rank, and says so."""
    group = find(axis)
    return whole(group.index, Origin(Source.INDEX, frozenset(group.axes), f"axis_index({group.name!r})"))


def axis_size(axis: Axis) -> int:
    """The number of ranks on an axis of the current mesh; times a local length it is that of the whole dim."""
    group = find(axis)
    return whole(group.size, Origin(Source.SIZE, frozenset(group.axes), f"axis_size({group.name!r})"))


def no_dim(x: object, dim: object) -> SpmdTypeError:
    """What to say where a length is asked for of what is no tensor, or of a dim that it does not have."""
    return SpmdTypeError(
        Problem(
            where="size",
            what=f"a tensor of {x.dim()} dims has no dim {shown(dim)}"
            if isinstance(x, Tensor)
            else f"{shown(x)} is no tensor",
            why="a length over all ranks is of a dim of a tensor",
            fix=f"spmd.size(x, dim, axis) with dim from {-x.dim()} to {x.dim() - 1}"
            if isinstance(x, Tensor) and x.dim()
            else "spmd.size(x, dim, axis) of a tensor that has dims",
            code=Code.ARGUMENT,
        )
    )


def size(x: Tensor, dim: int, *axes: Axis) -> int:
    """The length of a dim over all ranks: the local one times the ranks of the axes that shard it evenly.

    Under `typecheck` the axes are verified to be those that shard the dim, and need not be named; a program that runs
    unchecked on a mesh has to name them, since nothing else is known of `x`.

    Errors: `SpmdTypeError` where they are others, where the dim is cut unevenly, and where they are not named.
    """
    if has_torch_function_unary(x):
        return handle_torch_function(size, (x,), x, dim, *axes)
    try:
        length = x.shape[dim]
    except (AttributeError, TypeError, IndexError):
        raise no_dim(x, dim) from None
    view = current_mesh()
    if not axes and view is not None and view.degree:
        raise SpmdTypeError(
            Problem(
                where="size",
                what=f"nobody checks, and the length of dim {dim} over all ranks is asked for without its axes",
                why="only the types know which axes shard a dim, and a program that runs unchecked has none",
                fix=f"spmd.size(x, {dim}, axis) with the axes that shard the dim; or x.shape[{dim}] where none does",
                code=Code.LENGTH,
            )
        )
    for each in axes:
        length *= find(each).size
    return length

"""Views of what torch and the caller call a mesh: device meshes, process groups, patterns of ranks."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cache, partial

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshwright.codes import Code
from meshwright.comm.mesh_axis import MeshAxis
from meshwright.comm.process_groups import ProcessGroup
from meshwright.comm.shapes import Shapes, mesh
from meshwright.comm.transport import Alone, Reordered, Transport
from meshwright.comm.view import View, mesh_axis
from meshwright.errors import Problem, SpmdTypeError

AxisLike = MeshAxis | dist.ProcessGroup | DeviceMesh | Transport
Meshlike = View | DeviceMesh | Mapping[str, AxisLike] | Sequence[dist.ProcessGroup]

__all__ = ["AxisLike", "Meshlike", "bare", "mesh", "view_of"]


def view_of(given: Meshlike) -> View:
    """The view that `given` describes.

    Errors: `SpmdTypeError` for what is no mesh, and for a device mesh without names.
    """
    if isinstance(given, View):
        return given
    if isinstance(given, DeviceMesh):
        names = given.mesh_dim_names
        if names is None:
            raise _no_mesh("a device mesh without names", "init_device_mesh(..., mesh_dim_names=(...))")
        return _view({name: given.get_group(name) for name in names})
    if isinstance(given, Mapping):
        return _view(given)
    if isinstance(given, Sequence) and all(isinstance(each, dist.ProcessGroup) for each in given):
        patterns = [MeshAxis.of(each) for each in given]
        return _view(
            {each.name or f"axis{i}": group for i, (each, group) in enumerate(zip(patterns, given, strict=True))}
        )
    raise _no_mesh(repr(given), "mesh(dp=2, tp=4), a DeviceMesh, or {name: MeshAxis or process group}")


def bare(axis: dist.ProcessGroup | DeviceMesh) -> Transport:
    """A process group by itself, without a mesh around it; the same for the same ranks."""
    pattern = mesh_axis(axis)
    named = axis.mesh_dim_names if isinstance(axis, DeviceMesh) else None
    group = axis.get_group() if isinstance(axis, DeviceMesh) else axis
    return _bare(group, named[0] if named else pattern.name or repr(pattern))


@cache
def _bare(group: dist.ProcessGroup, name: str) -> Transport:
    return _of_group(name, group)


def _no_mesh(what: str, fix: str) -> SpmdTypeError:
    return SpmdTypeError(
        Problem(
            where="set_current_mesh",
            what=f"{what} is no mesh",
            why="a mesh names axes over ranks",
            fix=fix,
            code=Code.MESH,
        )
    )


def _view(axes: Mapping[str, AxisLike]) -> View:
    transports = {name: _transport(name, each) for name, each in axes.items()}
    return View(transports, partial(_join, transports))


def _transport(name: str, given: AxisLike) -> Transport:
    if isinstance(given, Transport):
        found = copy.copy(given)
        found.name, found.axes, found.bound = name, {name: given.size}, {}
        return found
    if isinstance(given, MeshAxis):
        if dist.is_initialized():
            return _of_group(name, _group(given.ranks(dist.get_rank()), dist.group.WORLD))
        found = Shapes(name, given.size, 0) if given.size > 1 else Alone(name)
        found.mesh_axis = given
        return found
    if isinstance(given, DeviceMesh):
        _ = mesh_axis(given)  # it has one dim
        return _of_group(name, given.get_group())
    if isinstance(given, dist.ProcessGroup):
        return _of_group(name, given)
    raise _no_mesh(f"{name!r}: {given!r}", f"{{{name!r}: MeshAxis.of(size, stride)}}, or a process group")


def _of_group(name: str, group: dist.ProcessGroup) -> Transport:
    found = ProcessGroup(name, group) if group.size() > 1 else Alone(name)
    found.mesh_axis = MeshAxis.of(group)
    return found


def _join(transports: Mapping[str, Transport], names: tuple[str, ...]) -> Transport:
    """Several axes as one; a group is made of their ranks, on all of which this is called."""
    parts = [transports[name] for name in names]
    name, degree = ",".join(names), {name: transports[name].size for name in names}
    if all(isinstance(each, Shapes) for each in parts):
        place = 0
        for each in parts:
            place = place * each.size + each.index
        return Shapes(name, math.prod(degree.values()), place, degree)
    patterns = [each.mesh_axis for each in parts]
    if not all(isinstance(each, ProcessGroup) for each in parts) or None in patterns:
        raise SpmdTypeError(
            Problem(
                where=f"axes {', '.join(map(repr, names))}",
                what="these axes have no group over all their ranks",
                why="a step over several axes is one collective",
                fix="axes that are all process groups, or all of one view",
                code=Code.MESH,
            )
        )
    me = dist.get_rank()
    offsets = [[rank - me for rank in pattern.ranks(me)] for pattern in patterns if pattern is not None]
    ranks = tuple(me + sum(steps) for steps in itertools.product(*offsets))
    ordered = tuple(sorted(ranks))
    group = ProcessGroup(name, _group(ordered, dist.group.WORLD), degree)
    return group if ranks == ordered else Reordered(name, group, tuple(map(ordered.index, ranks)), degree)


@cache
def _group(ranks: tuple[int, ...], world: dist.ProcessGroup) -> dist.ProcessGroup:
    """One group for the same ranks of one world."""
    group: dist.ProcessGroup = dist.new_group(list(ranks), use_local_synchronization=True)
    return group

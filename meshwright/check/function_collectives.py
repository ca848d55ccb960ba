"""Collectives of `torch.distributed` where a Function is tried: the simulated ranks of the current mesh serve them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.check.intercept import place
from meshwright.comm.scope import current_mesh
from meshwright.comm.transport import Transport
from meshwright.comm.view import View


class Untried(Exception):
    """Why a Function cannot be tried."""


class _Served(threading.local):
    mesh: View | None = None


_served: Final = _Served()


@contextmanager
def serving(mesh: View) -> Iterator[None]:
    """Until the end of the block process groups of the program, which are axes of its `mesh`, are those of the current
    mesh that have the same names.
    """
    _served.mesh = mesh
    try:
        yield
    finally:
        _served.mesh = None


def axes_of(mesh: View, group: Any) -> tuple[str, ...] | None:
    """The axes whose ranks are those of a process group, or of its name: one, or all of them for the whole world."""
    wanted = group if isinstance(group, str) else getattr(group, "group_name", None)
    for axis, transport in mesh.items():
        if group is not None and wanted is not None and getattr(transport, "group_name", None) == wanted:
            return (axis,)
    ranks = math.prod(mesh.degree.values())
    everyone = group is None or group is dist.group.WORLD
    if everyone and mesh.degree and dist.is_initialized() and ranks == _world_size():
        return tuple(mesh.degree)
    return None


def _world_size() -> int:
    served, _served.mesh = _served.mesh, None  # of the processes, and not of simulated ranks
    try:
        return dist.get_world_size()
    finally:
        _served.mesh = served


def _transport(group: Any) -> Transport:
    """The simulated ranks of a group of the program.

    Errors: `Untried` where it is no axis of the program's mesh.
    """
    mesh, simulated = _served.mesh, current_mesh()
    assert mesh is not None
    assert simulated is not None
    world = dist.group.WORLD
    name = group if isinstance(group, str) else getattr(group, "group_name", None)
    axes = axes_of(mesh, world if world is not None and name == world.group_name else group)
    if axes is None:
        raise Untried("it uses a process group that is no axis of the mesh")
    return simulated.joined(axes)


@place(lambda: dist, "get_rank")
def rank_in(original: Callable[..., Any], group: Any = None) -> Any:
    """The place of the simulated rank."""
    return original(group) if _served.mesh is None else _transport(group).index


@place(lambda: dist, "get_world_size")
def size_of(original: Callable[..., Any], group: Any = None) -> Any:
    """The number of simulated ranks."""
    return original(group) if _served.mesh is None else _transport(group).size


_Group = getattr(getattr(torch._C, "_distributed_c10d", None), "ProcessGroup", None)


@place(lambda: _Group, "rank")
def own_rank(original: Callable[..., Any], group: Any) -> Any:
    """The place of the simulated rank."""
    return original(group) if _served.mesh is None else _transport(group).index


@place(lambda: _Group, "size")
def own_size(original: Callable[..., Any], group: Any) -> Any:
    """The number of simulated ranks."""
    return original(group) if _served.mesh is None else _transport(group).size


_REDUCED: Final = {"sum": "sum", "avg": "sum", "max": "max", "min": "min"}


def _reduction(op: Any) -> str:
    name = (op if isinstance(op, str) else dist.ReduceOp.RedOpType(int(op.op())).name).lower()
    if name not in _REDUCED:
        raise Untried(f"it reduces by {name}")
    return name


def _all_reduce(x: Tensor, group: Transport, op: Any) -> Tensor:
    name = _reduction(op)
    total = group.all_reduce(x, _REDUCED[name])  # type: ignore[arg-type]
    return total / group.size if name == "avg" else total


def _all_gather(x: Tensor, group: Transport) -> Tensor:
    """[...] on each rank -> [ranks, ...]."""
    return group.all_gather(x.unsqueeze(0))


def _reduce_scatter(x: Tensor, group: Transport, op: Any) -> Tensor:
    """[ranks, ...] on each rank -> [...]."""
    name = _reduction(op)
    if _REDUCED[name] != "sum":
        raise Untried(f"it reduces by {name} and scatters")
    part = group.reduce_scatter(x).squeeze(0)
    return part / group.size if name == "avg" else part


def _all_to_all(x: Tensor, rows: int, receive: Sequence[int], send: Sequence[int], group: Transport) -> Tensor:
    """rows: in all that come in; the sizes are empty where they are equal."""
    return group.all_to_all(
        x, list(receive) or [rows // group.size] * group.size, list(send) or [x.shape[0] // group.size] * group.size
    )


def _reduce_in_place(tensors: list[Tensor], group: Transport, op: Any, *_: Any) -> Any:
    for x in tensors:
        x.copy_(_all_reduce(x, group, op))
    return tensors


def _gather_into(out: Tensor, x: Tensor, group: Transport, *_: Any) -> Any:
    return out.copy_(_all_gather(x, group).reshape(out.shape))


def _gather_list(outs: list[list[Tensor]], xs: list[Tensor], group: Transport, *_: Any) -> Any:
    for parts, x in zip(outs, xs, strict=True):
        for part, found in zip(parts, _all_gather(x, group), strict=True):
            part.copy_(found)
    return outs


def _gather_to_one(outs: list[list[Tensor]], xs: list[Tensor], group: Transport, *_: Any) -> None:
    gathered = [_all_gather(x, group) for x in xs]
    for parts, found in zip(outs, gathered, strict=False):  # only the root has some
        for part, one in zip(parts, found, strict=True):
            part.copy_(one)


def _scatter_into(out: Tensor, x: Tensor, group: Transport, op: Any, *_: Any) -> Any:
    return out.copy_(_reduce_scatter(x.reshape(group.size, *out.shape), group, op))


def _scatter_list(outs: list[Tensor], xs: list[list[Tensor]], group: Transport, op: Any, *_: Any) -> Any:
    for out, parts in zip(outs, xs, strict=True):
        out.copy_(_reduce_scatter(torch.stack(parts), group, op))
    return outs


def _exchange_list(outs: list[Tensor], xs: list[Tensor], group: Transport, *_: Any) -> Any:
    receive, send = ([each.numel() for each in tensors] for tensors in (outs, xs))
    found = group.all_to_all(torch.cat([x.reshape(-1) for x in xs]), receive, send)
    for out, part in zip(outs, found.split(receive), strict=True):
        out.copy_(part.view(out.shape))
    return outs


def _exchange(out: Tensor, x: Tensor, group: Transport, receive: list[int], send: list[int], *_: Any) -> None:
    out.copy_(_all_to_all(x, out.shape[0], receive, send, group))


def _broadcast(tensors: list[Tensor], group: Transport, root: int, *_: Any) -> Any:
    for x in tensors:
        x.copy_(_all_gather(x, group)[root])
    return tensors


def _reduce_to_one(tensors: list[Tensor], group: Transport, op: Any, root: int, *_: Any) -> None:
    for x in tensors:
        total = _all_reduce(x, group, op)
        if group.index == root:
            x.copy_(total)


def _send(tensors: list[Tensor], group: Transport, to: int, *_: Any) -> None:
    for x in tensors:
        group.send(x, to)


def _receive(tensors: list[Tensor], group: Transport, source: int, *_: Any) -> None:
    for x in tensors:
        x.copy_(group.recv(x, source))


def _barrier(*_: Any) -> None:
    return None


_IN_PLACE: Final[Mapping[str, tuple[int, Callable[..., Any]]]] = {
    "c10d::allreduce_": (1, _reduce_in_place),
    "c10d::_allgather_base_": (2, _gather_into),
    "c10d::allgather_": (2, _gather_list),
    "c10d::gather_": (2, _gather_to_one),
    "c10d::_reduce_scatter_base_": (2, _scatter_into),
    "c10d::reduce_scatter_": (2, _scatter_list),
    "c10d::alltoall_": (2, _exchange_list),
    "c10d::alltoall_base_": (2, _exchange),
    "c10d::broadcast_": (1, _broadcast),
    "c10d::reduce_": (1, _reduce_to_one),
    "c10d::send": (1, _send),
    "c10d::recv_": (1, _receive),
    "c10d::barrier": (1, _barrier),
}
"""Op of torch -> which of its arguments is the group, and what it does."""

_FUNCTIONAL: Final[Mapping[str, Callable[..., Tensor]]] = {
    "_c10d_functional::all_reduce": lambda x, op, group: _all_reduce(x, group, op),
    "_c10d_functional::all_gather_into_tensor": lambda x, size, group: _all_gather(x, group).flatten(0, 1),
    "_c10d_functional::reduce_scatter_tensor": lambda x, op, size, group: _reduce_scatter(
        x.unflatten(0, (group.size, -1)), group, op
    ),
    "_c10d_functional::all_to_all_single": lambda x, receive, send, group: _all_to_all(
        x, sum(receive), receive, send, group
    ),
    "_c10d_functional::broadcast": lambda x, root, group: _all_gather(x, group)[root],
}
"""Op of torch, whose last argument is the group -> what it returns."""


_WAITS: Final = ("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd")
"""Ops of torch that return what they are given, once it is there."""


def collective(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What an op of torch returns if it is a collective, as a tuple of one; empty for any other op.

    Errors: `Untried` for a collective that is not served.
    """
    if name in _WAITS:
        return args[:1]
    if name in _FUNCTIONAL:
        *given, group = args
        return (_FUNCTIONAL[name](*given, _transport(group)),)
    if name in _IN_PLACE:
        at, run = _IN_PLACE[name]
        group = args[at] if isinstance(args[at], dist.ProcessGroup) else dist.ProcessGroup.unbox(args[at])
        result = run(*args[:at], _transport(group), *args[at + 1 :])
        work = torch._C._distributed_c10d.Work.boxed(torch._C._distributed_c10d.FakeWork())
        return (work if result is None else (result, work),)
    if name.startswith(("c10d::", "_c10d_functional::")):
        raise Untried(f"simulated ranks have no {name}")
    return ()

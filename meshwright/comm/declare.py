"""`assert_type`: what the author says of a tensor, for whoever checks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import handle_torch_function, has_torch_function_unary

from meshwright.codes import Code
from meshwright.comm.mesh_axis import MeshAxis
from meshwright.comm.scope import current_mesh, find
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import shown
from meshwright.types.kinds import Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.partition import PartitionSpec, know_axes

Stated = Mapping[Any, SpmdType] | SpmdType | PartitionSpec | None
"""{axis: type}; a bare type, of every axis of the mesh that nothing else names; a spec of dims; or nothing."""
T = TypeVar("T", bound=Tensor | Sequence[Tensor])

know_axes((MeshAxis, dist.ProcessGroup, DeviceMesh), lambda axis: find(axis).name)


def assert_type(tensor: T, *types: Stated, partition_spec: PartitionSpec | None = None) -> T:
    """State the type of `tensor`, or of each of a list of them, on some axes; returns it.

    types: {axis: type}, a bare type for all axes of the current mesh that nothing else names, a `PartitionSpec`, or
    several of these, where V is made S(dim) by one that names the dim. Axes are names, process groups or mesh axes;
    S(-1) is the last dim.

    Under `typecheck` the type is noted where nothing is known of it and verified where something is. Otherwise
    nothing happens.

    Errors: `SpmdTypeError` where the type is another one, the axis is not in the current mesh, or the types given
    contradict each other.
    """
    if has_torch_function_unary(tensor):
        if isinstance(tensor, Tensor):
            layout = stated_layout(types, partition_spec, tensor.dim())
            judged = cast(Callable[..., T], assert_type)
            return handle_torch_function(judged, (tensor,), tensor, layout)
        if not isinstance(tensor, (list, tuple)):
            raise SpmdTypeError(_no_tensor("assert_type", tensor, "a tensor, or a list or tuple of tensors"))
        kind = cast(Callable[[list[Tensor]], T], type(tensor))
        return kind([assert_type(each, *types, partition_spec=partition_spec) for each in tensor])
    return tensor


def assert_local_type(tensor: Tensor, type: Stated) -> Tensor:
    """`assert_type` with one type, under the name that code has from before.

    Errors: as of `assert_type`.
    """
    return assert_type(tensor, type)


def assert_type_like(tensor: Tensor, source: Tensor, overrides: Mapping[Any, SpmdType] | None = None) -> Tensor:
    """State that `tensor` is what `source` is, but for `overrides`; returns it.

    Errors: as of `assert_type`.
    """
    if has_torch_function_unary(tensor):
        for each in (tensor, source):
            if not isinstance(each, Tensor):
                raise SpmdTypeError(_no_tensor("assert_type_like", each, "a tensor"))
        if overrides is not None and not isinstance(overrides, Mapping):
            raise SpmdTypeError(_no_statement(overrides))
        return handle_torch_function(assert_type_like, (tensor,), tensor, source, by_name(overrides or {}))
    return tensor


def merge_types(*types: Stated) -> SpmdLayout:
    """One layout of several partial ones, as `assert_type` takes them.

    Errors: `SpmdTypeError` where they contradict each other.
    """
    return stated_layout(types, None, None)


def stated_layout(types: Sequence[Stated], spec: PartitionSpec | None, dims: int | None) -> SpmdLayout:
    """The layout that a call states; `dims`: of the tensor, None where it is not known.

    Errors: `SpmdTypeError` where the parts contradict each other.
    """
    if len(types) == 1 and spec is None and type(types[0]) is SpmdLayout:
        return types[0]
    found: dict[str, SpmdType] = {}
    bare: SpmdType | None = None
    for part in (*types, spec):
        if part is None:
            continue
        if isinstance(part, SpmdType):
            if bare is not None and bare is not part:
                raise SpmdTypeError(_contradiction("every other axis", bare, part))
            bare = part
            continue
        if not isinstance(part, (PartitionSpec, Mapping)):
            raise SpmdTypeError(_no_statement(part))
        if isinstance(part, PartitionSpec) and dims is not None and len(part) > dims:
            raise SpmdTypeError(_no_statement(part))
        named = part.layout() if isinstance(part, PartitionSpec) else by_name(part)
        for axis, kind in named.items():
            kind = kind.of(dims) if isinstance(kind, Shard) and dims is not None else kind
            before = found.pop(axis, kind)
            if V in (before, kind) and (isinstance(before, Shard) or isinstance(kind, Shard)):
                kind = before if kind is V else kind  # V, of which the dim is told beside it
            elif before is not kind:
                raise SpmdTypeError(_contradiction(f"axis {axis!r}", before, kind))
            found[axis] = kind
    if bare is not None:
        mesh = current_mesh()
        if mesh is None:
            raise SpmdTypeError(
                Problem(
                    where="assert_type",
                    what=f"{bare!r} is meant for all axes, and no mesh is current",
                    why="a bare type is that of every axis of the current mesh that nothing else names",
                    fix=f"with set_current_mesh(...): around the call; or {{axis: {bare!r}}}",
                    code=Code.MESH,
                )
            )
        found = {**dict.fromkeys((axis for axis in mesh if axis not in found), bare), **found}
    return SpmdLayout(found)


def by_name(types: Mapping[Any, SpmdType]) -> Mapping[str, SpmdType]:
    """{axis: type} with the axes by name.

    Errors: `SpmdTypeError` where the current mesh does not have one.
    """
    if all(type(axis) is str for axis in types):
        return types
    return {axis if isinstance(axis, str) else find(axis).name: kind for axis, kind in types.items()}


def _no_tensor(where: str, given: object, fix: str) -> Problem:
    return Problem(
        where=where,
        what=f"{shown(given)} is no tensor",
        why="types are of tensors; a number is the same on every rank",
        fix=fix,
        code=Code.LAYOUT,
    )


def _no_statement(part: object) -> Problem:
    return Problem(
        where="assert_type",
        what=f"{shown(part)} says no type of this tensor",
        why="a type is stated for each axis, or which axes cut each dim that there is",
        fix='{"tp": R}; R, for all axes; or PartitionSpec("tp", None), with at most one entry for each dim',
        code=Code.LAYOUT,
    )


def _contradiction(where: str, one: SpmdType, other: SpmdType) -> Problem:
    return Problem(
        where=where,
        what=f"it is stated to be {one!r} and {other!r}",
        why="a tensor has one type on each axis",
        fix=f"{one!r} or {other!r}",
        code=Code.LAYOUT,
    )

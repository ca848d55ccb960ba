"""What authors say of tensors beyond `assert_type`, and what they may ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from torch import Tensor

from meshwright.check import source
from meshwright.check.context import active
from meshwright.check.elsewhere import patterns
from meshwright.check.operand import on_dims
from meshwright.check.refusal import change
from meshwright.check.tag import Tag, read, typed, write
from meshwright.codes import Code
from meshwright.comm.calls import demand_tensor
from meshwright.comm.meshes import Meshlike, view_of
from meshwright.comm.scope import find
from meshwright.comm.view import Axis
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import FLAG, demand
from meshwright.types.kinds import I, R, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.mesh_axis import reinterpreted
from meshwright.types.notation import render
from meshwright.types.partition import PartitionSpec
from meshwright.types.transition import demand_types

F = TypeVar("F", bound=Callable[..., Any])
Types = Mapping[str, SpmdType]


def _known(x: Tensor, where: str) -> Tag:
    """What is known of `x`.

    Errors: `SpmdTypeError` for what is no tensor.
    """
    demand_tensor(x, where)
    return read(x)


def layout_of(x: Tensor) -> SpmdLayout:
    """The layout of `x` as far as the checker knows it, on dims."""
    tag = _known(x, "layout_of")
    return tag.layout if tag.factors is None else on_dims(tag.layout, tag.factors)


def has_local_type(x: Tensor) -> bool:
    """Whether anything is known of `x`."""
    return bool(_known(x, "has_local_type").layout)


def get_local_type(x: object) -> dict[str, SpmdType]:
    """Axis -> R, I, V or P; V where some dim is sharded. Empty where nothing is known."""
    if not isinstance(x, Tensor):
        return {}
    return {axis: V if isinstance(kind, Shard) else kind for axis, kind in layout_of(x).items()}


def get_axis_local_type(x: Tensor, axis: Axis) -> SpmdType:
    """R, I, V or P on one axis.

    Errors: `SpmdTypeError` where nothing is known of `x` on it.
    """
    known = get_local_type(x)
    axis = _name(axis)
    if axis not in known:
        raise SpmdTypeError(
            Problem(
                where=source.line(),
                what=f"nothing is known of the tensor on axis {axis!r}",
                why="a type is stated once, where a tensor comes into the program",
                fix=f"assert_type(x, {{{axis!r}: R}}), or another of R, I, V, P, S(dim)",
                code=Code.UNTYPED,
            )
        )
    return known[axis]


def _name(axis: Axis) -> str:
    return axis if isinstance(axis, str) else find(axis).name


def get_partition_spec(x: Tensor) -> PartitionSpec | None:
    """Which axes shard each dim of `x`; None where none does."""
    layout = layout_of(x)
    return PartitionSpec.of(layout, x.dim()) if layout.sharded else None


def mutate_type(x: Tensor, axis: str | None = None, *, src: SpmdType | Types, dst: SpmdType | Types) -> Tensor:
    """Overwrite what is known of `x` on some axes, for buffers whose meaning changes in place; returns `x`.

    src: what it is now, dst: what it is from now on; one type, or one for each axis. Without an axis all that are
    known are meant. Without `typecheck` nothing happens.

    Errors: `SpmdTypeError` where `x` is not `src`.
    """
    check = active()
    if check is None:
        return x
    tag = _known(x, "mutate_type")
    axes = (
        [_name(axis)]
        if axis is not None
        else list(dst if isinstance(dst, Mapping) else src if isinstance(src, Mapping) else tag.layout)
    )
    changed = dict(layout_of(x))
    for each in axes:
        was = _on(src, each, "src")
        now = _on(dst, each, "dst")
        known = changed.get(each)
        if known is None or (known is not was and not (isinstance(known, Shard) and was is V)):
            raise SpmdTypeError(
                Problem(
                    where=source.line(),
                    what=f"x is {known!r} on axis {each!r}, not {was!r}, and mutate_type would make it {now!r}",
                    why="what is overwritten is named, so that nothing else is",
                    fix=f"mutate_type(x, {each!r}, src={known!r}, dst={now!r})",
                    code=Code.OTHER_TYPE,
                )
            )
        changed[each] = now
    write(x, typed(SpmdLayout(changed)))
    return x


def _on(said: SpmdType | Types, axis: str, name: str) -> SpmdType:
    """The type that is said of an axis.

    Errors: `SpmdTypeError` where none is.
    """
    kind = said.get(axis) if isinstance(said, Mapping) else said
    if not isinstance(kind, SpmdType):
        raise SpmdTypeError(
            Problem(
                where=f"{source.line()}, axis {axis!r}",
                what=f"{name}={said!r} says no type on it",
                why="what is overwritten is named, with what it becomes",
                fix="src and dst: a type each, or {axis: type} each with the same axes",
                code=Code.LAYOUT,
            )
        )
    return kind


def show(x: Tensor) -> str:
    """What is known of `x`, in the notation: `f32[(4@dp, 8@cp), 16]{tp:R}`.

    Under `typecheck`; elsewhere of a tensor of which nothing is known.
    """
    check = active()
    tag = _known(x, "show")
    return (
        repr(check.operand(x)) if check is not None else render(str(x.dtype), tuple(x.shape), tag.layout, tag.factors)
    )


def reinterpret_mesh(x: Tensor, type: Types | Meshlike, *, inplace: bool = False) -> Tensor:
    """`x` on the axes of another mesh over the same ranks, while every rank keeps what it holds.

    type: {axis: type}, verified; or a mesh, whose axes are taken. inplace: `x` itself, else another tensor of the same
    memory. Without `typecheck` this returns `x`.

    Errors: `SpmdTypeError` where `x` has no one type on some axis there, or another one than is said.
    """
    check = active()
    if check is None:
        return x
    demand("reinterpret_mesh", "inplace", inplace, FLAG)
    stated: SpmdLayout | None = None
    if isinstance(type, Mapping) and all(isinstance(kind, SpmdType) for kind in type.values()):
        stated = SpmdLayout(cast(Types, type))
        axes = {axis: ranks for axis in stated if (ranks := find(axis).mesh_axis) is not None}
    else:
        axes = patterns(view_of(cast(Meshlike, type)))
    known = reinterpreted(layout_of(x), check.axes, axes)
    for axis, kind in (stated or {}).items():
        if known.get(axis) is not kind:
            raise SpmdTypeError(
                Problem(
                    where=source.line(),
                    what=f"x is {known.get(axis)!r} on axis {axis!r} of the other mesh, not {kind!r}",
                    why="every rank keeps what it holds when axes get other names",
                    fix=f"state {known.get(axis)!r}; or redistribute x before the mesh is switched",
                    code=Code.MESH,
                )
            )
    check.axes.update(axes)
    result = x if inplace else x.view_as(x)
    write(result, typed(known))
    return result


def reinterpret_no_grad(x: Tensor, axis: Axis, *, dst: SpmdType) -> Tensor:
    """R as I, or I as R, where no gradient flows and they are one; returns `x`.

    Errors: `SpmdTypeError` where `x` wants a gradient, or is neither.
    """
    check = active()
    if check is None:
        return x
    axis = _name(axis)
    demand_types(axis, dst)
    known = layout_of(x).get(axis)
    if x.requires_grad or known not in (R, I) or dst not in (R, I):
        raise SpmdTypeError(
            Problem(
                where=source.line(),
                what=f"x is {known!r} on axis {axis!r}{', wants a gradient,' if x.requires_grad else ''} and is to be "
                f"read as {dst!r}",
                why="only R and I without a gradient are one",
                fix=change("x", axis, known or R, dst),
                code=Code.OTHER_TYPE,
            )
        )
    return mutate_type(x, axis, src=known, dst=dst)

"""What all public calls share: from the types and options of a call to bound steps, once for each axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from meshwright.codes import Code
from meshwright.comm.declare import assert_type
from meshwright.comm.options import PLAIN, Options, demand_back_dtype, demand_kind
from meshwright.comm.scope import find, mesh_of
from meshwright.comm.steps import BoundStep
from meshwright.comm.transport import Transport
from meshwright.comm.view import Axis
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import FLAG, WHOLE, WHOLES, demand, shown
from meshwright.types.kinds import I, R, Shard, SpmdType, V
from meshwright.types.planner import plan
from meshwright.types.transition import CHANGES, Op, Step, claim, demand_types, step

QUIET: Final = "slice, pad, mask or retag"
CLAIM: Final = "claim"


def apply(
    x: Tensor,
    axis: Axis,
    src: Any,
    dst: Any,
    op: Op | str | None,
    options: Options,
    expert_mode: bool = False,
) -> Tensor:
    """One call on one axis, by steps that are bound to it once.

    op: the step that the call names; `QUIET`, `CLAIM`, or None where any will do.

    Errors: `SpmdTypeError` for what is no tensor, no axis of the mesh, or another step than the one that is named.
    """
    group = find(axis)
    key = (op, src, dst) if options is PLAIN and expert_mode is False else (op, src, dst, options, expert_mode)
    try:
        bound = group.bound.get(key)
    except TypeError:  # what cannot be a key is no type and no flag
        bound = None
    if bound is None or not isinstance(x, Tensor):
        demand_tensor(x, _where(axis))
        if _from_the_end(src) or _from_the_end(dst):
            return apply(x, axis, _counted(src, x), _counted(dst, x), op, options, expert_mode)
        bound = group.bound[key] = _bind(group, src, dst, op, options, expert_mode)
    if len(bound) == 1 and options is PLAIN and not bound[0].sums_back:
        return bound[0](x)
    return _carried(x, bound) if bound else _kept(x, {group.name: src}, options)


def _from_the_end(kind: Any) -> bool:
    return isinstance(kind, Shard) and kind.dim < 0


def _counted(kind: Any, x: Tensor) -> Any:
    """S(-1) as the last dim of `x`.

    Errors: `SpmdTypeError` where `x` has no such dim.
    """
    if not _from_the_end(kind):
        return kind
    if kind.dim + x.dim() < 0:
        raise SpmdTypeError(
            Problem(
                where="",
                what=f"a tensor of {x.dim()} dims {tuple(x.shape)} has no dim for {kind!r}",
                why="S(-1) is the last dim of a tensor",
                fix="S(dim) of a dim that there is" if x.dim() else "R, I or P: a scalar has no dim to shard",
                code=Code.SHAPE,
            )
        )
    return kind.of(x.dim())


def _carried(x: Tensor, bound: tuple[BoundStep, ...]) -> Tensor:
    for each in bound:
        if each.options is not PLAIN:
            demand_kind(each.step.where, each.options, x)
        if each.sums_back and (each.options is not PLAIN or x.dtype is not torch.float32):
            demand_back_dtype(each.step, each.options, x)
        x = each(x)
    return x


def _kept(x: Tensor, types: Mapping[str, SpmdType], options: Options) -> Tensor:
    """No step at all: only the type is stated, and the dtype of the result."""
    x = assert_type(x, types)
    dtype = options.out_dtype or options.op_dtype
    return x if dtype is None else x.to(dtype)


def _bind(
    group: Transport, src: Any, dst: Any, op: Op | str | None, options: Options, expert_mode: bool
) -> tuple[BoundStep, ...]:
    demand_types(group.name, src, dst)
    demand(f"axis {group.name!r}", "expert_mode", expert_mode, FLAG)
    steps: tuple[Step, ...]
    if op is CLAIM:
        steps = claim(group.name, src, dst, expert_mode=expert_mode)
    elif op is Op.ALL_TO_ALL and src is V and dst is V:
        steps = (Step((group.name,), V, V, Op.ALL_TO_ALL),)
    else:
        if isinstance(op, Op):
            _demand_named(group.name, src, dst, op)
        change = step(group.name, src, dst, expert_mode=expert_mode)
        if change is not None and op is QUIET and change.op.communicates:
            raise SpmdTypeError(_other_step(group.name, src, dst, QUIET, change.op))
        steps = () if change is None else (change,)
    return _bound(steps, [group] * len(steps), options)


def _bound(steps: Sequence[Step], groups: Sequence[Transport], options: Options) -> tuple[BoundStep, ...]:
    last = len(steps) - 1
    return tuple(
        BoundStep(each, group, options if last == 0 else options.part(place == 0, place == last))
        for place, (each, group) in enumerate(zip(steps, groups, strict=True))
    )


def planned(x: Tensor, src: Any, dst: Any, options: Options, expert_mode: bool) -> Tensor:
    """A change of a whole layout, by the plan for the current mesh.

    Errors: `SpmdTypeError` where src or dst is no layout on axes of the mesh, and where no plan leads there.
    """
    for name, layout in (("src", src), ("dst", dst)):
        if not isinstance(layout, Mapping):
            raise SpmdTypeError(
                Problem(
                    where="redistribute",
                    what=f"{name}={layout!r} without an axis",
                    why="a type is on one axis; without one, src and dst are layouts",
                    fix=f"redistribute(x, axis, src={src!r}, dst={dst!r}), or {{axis: type}} for both",
                    code=Code.LAYOUT,
                )
            )
    demand_tensor(x, "redistribute")
    view = mesh_of("redistribute")
    made = plan(src, dst, view.degree, expert_mode=expert_mode)
    for name in made.src:
        _ = view[name]  # the mesh says which axes there are
    bound = view.bound.get((made.src, made.dst, options, expert_mode))
    if bound is None:
        bound = _bound(made.steps, [view.joined(each.axes) for each in made], options)
        view.bound[made.src, made.dst, options, expert_mode] = bound
    return _carried(x, bound) if bound else _kept(x, made.src, options)


def dealt(
    x: Tensor,
    axis: Axis,
    src: SpmdType,
    dst: SpmdType,
    send: Sequence[int] | None,
    receive: Sequence[int] | None,
    options: Options,
) -> Tensor:
    """An all_to_all of rows: which rank gets how many is the caller's to say.

    S(0) -> S(0): rows of one dim that is cut. V -> V: rows that each rank has of its own.
    """
    demand_tensor(x, _where(axis))
    group = find(axis)
    if not (src is V and dst is V) and not all(isinstance(kind, Shard) and kind.dim == 0 for kind in (src, dst)):
        raise SpmdTypeError(
            Problem(
                where=_where(axis),
                what=f"rows are dealt out by number, and the types are {src!r} -> {dst!r}",
                why="rows are along dim 0, of one tensor that is cut or of one on each rank",
                fix=f"all_to_all(x, {group.name!r}, src=V, dst=V, input_split_sizes=..., output_split_sizes=...); "
                "or src=S(0), dst=S(0)",
                code=Code.NO_STEP,
            )
        )
    dim = options.dims[0] if options.dims else 0
    rows = x.shape[dim] if x.dim() > dim else 0
    sizes = []
    for name, given, total in (("input_split_sizes", send, rows), ("output_split_sizes", receive, None)):
        if given is not None:
            demand(_where(axis), name, given, WHOLES)
        found = (rows // group.size,) * group.size if given is None else tuple(given)
        if len(found) != group.size or min(found) < 0 or (total is not None and sum(found) != total):
            raise SpmdTypeError(
                Problem(
                    where=_where(axis),
                    what=f"{name}={list(found)} for {rows} rows and {group.size} ranks",
                    why="each rank is sent a number of rows, and all rows are sent",
                    fix=f"{group.size} numbers" + ("" if total is None else f" that add up to {total}"),
                    code=Code.DOES_NOT_DIVIDE,
                )
            )
        sizes.append(found)
    change = Step((group.name,), src, dst, Op.ALL_TO_ALL)
    return _carried(x, (BoundStep(change, group, replace(options, rows=(sizes[0], sizes[1]))),))


def along(axis: Axis, name: str, kind: SpmdType, dim: int | None) -> SpmdType:
    """Errors: `SpmdTypeError` where a named dim is another than the shard's, or counted from the back."""
    if dim is not None and type(dim) is not int:
        demand(_where(axis), name, dim, WHOLE)
    if dim is not None and (dim < 0 or (isinstance(kind, Shard) and kind.dim != dim)):
        raise SpmdTypeError(
            Problem(
                where=_where(axis),
                what=f"{name}={dim} with {kind!r}",
                why="S(i) says the dim itself, and dims are counted from the front",
                fix=f"leave {name} out" + (f", or S({dim})" if dim >= 0 else ""),
                code=Code.NO_STEP,
            )
        )
    return kind


def sized(axis: Axis, name: str, kind: SpmdType, sizes: Sequence[int] | None) -> SpmdType:
    """The type with the lengths that are named.

    Errors: `SpmdTypeError` for lengths of what is no shard, or that it states differently.
    """
    if sizes is None:
        return kind
    if type(sizes) is not tuple:
        demand(_where(axis), name, sizes, WHOLES)
    if not isinstance(kind, Shard) or kind.sizes not in (None, tuple(sizes)):
        raise SpmdTypeError(
            Problem(
                where=_where(axis),
                what=f"{name}={list(sizes)} with {kind!r}",
                why="lengths are of a sharded dim, and are said once",
                fix=f"S(dim) with {name}, or S(dim, {tuple(sizes)}) alone",
                code=Code.NO_STEP,
            )
        )
    return Shard(kind.dim, tuple(sizes))


def stacked(options: Options, kind: SpmdType, dim: int | None) -> Options:
    """The options with the dim along which a list is stacked."""
    return replace(options, dims=(dim, dim)) if kind is V and dim else options


def demand_shard(axis: Axis, call: str, name: str, kind: object) -> None:
    """Errors: `SpmdTypeError` where the alias is called with another type than a shard."""
    if not isinstance(kind, Shard):
        raise SpmdTypeError(
            Problem(
                where=_where(axis),
                what=f"{call} with {name}={kind!r}",
                why=f"{call} goes {'to' if name == 'dst' else 'from'} a shard",
                fix=f"{name}=S(dim), or {'convert' if name == 'dst' else 'all_gather'}",
                code=Code.NO_STEP,
            )
        )


def demand_tensor(x: object, where: str) -> None:
    """Errors: `SpmdTypeError` for what is no tensor."""
    if not isinstance(x, Tensor):
        raise SpmdTypeError(
            Problem(
                where=where,
                what=f"{shown(x)} is no tensor",
                why="types are of tensors; a number is the same on every rank",
                fix="torch.tensor(...), or leave the call out",
                code=Code.LAYOUT,
            )
        )


def _where(axis: Axis) -> str:
    name = axis if isinstance(axis, str) else find(axis).name
    return f"axis {name!r}"


def _demand_named(axis: str, src: SpmdType, dst: SpmdType, op: Op) -> None:
    """The caller named an operation: the step between the two types is to be that one."""
    found = CHANGES.get(f"{src.letter} {dst.letter}")
    if found is not op and _is_swapped(src, dst, op.value):
        raise SpmdTypeError(_other_step(axis, src, dst, op.value, found))
    if op is Op.ALL_REDUCE and src in (R, I):
        raise SpmdTypeError(
            Problem(
                where=f"axis {axis!r}",
                what=f"{src!r} -> {dst!r} is no all_reduce: x is {src!r}, every rank holds the whole value already",
                why="only in P is a sum over ranks pending; reducing again would count each value once a rank",
                fix="leave the call out" if src is dst else f"leave the call out, or convert x: {src!r} -> {dst!r}",
                code=Code.OTHER_TYPE,
            )
        )
    if op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER) and src is V:
        raise SpmdTypeError(
            Problem(
                where=f"axis {axis!r}",
                what=f"V -> {dst!r} is no {op.value}: V is a list, and nothing says that its entries are to be added",
                why="only in P is a sum over ranks pending",
                fix=f"{op.value}(reinterpret(x, {axis!r}, src=V, dst=P), {axis!r}, src=P, dst={dst!r})",
                code=Code.OTHER_TYPE,
            )
        )
    if src is dst or (found is not None and found is not op):
        raise SpmdTypeError(_other_step(axis, src, dst, op.value, None if src is dst else found))


def _other_step(axis: str, src: SpmdType, dst: SpmdType, wanted: str, found: Op | None) -> Problem:
    is_swapped = _is_swapped(src, dst, wanted)
    call = wanted if is_swapped else found.value if found is not None and found.communicates else "convert"
    one, other = (dst, src) if is_swapped else (src, dst)
    does = f"{_DOES[found]}, {found.value}" if found is not None else "is no step at all"
    return Problem(
        where=f"axis {axis!r}",
        what=f"{src!r} -> {dst!r} is no {wanted}: it {does}",
        why="source and destination fix the step" + (f", and {_GOES[wanted]}" if wanted in _GOES else ""),
        fix=f"{call}(x, {axis!r}, src={one!r}, dst={other!r})" if found else "leave the call out",
        code=Code.NO_STEP,
    )


def _is_swapped(src: SpmdType, dst: SpmdType, wanted: str) -> bool:
    """Whether the call makes the step back."""
    back = CHANGES.get(f"{dst.letter} {src.letter}")
    return back is not None and back.value == wanted


_DOES: Final = {
    Op.ALL_GATHER: "collects the pieces of all ranks",
    Op.REDUCE_SCATTER: "sums over the ranks and leaves each a piece",
    Op.ALL_REDUCE: "sums over the ranks",
    Op.ALL_TO_ALL: "has every rank send a piece to every other",
    Op.SLICE: "keeps this rank's piece of what all have",
    Op.PAD: "puts zeros around this rank's piece",
    Op.MASK: "keeps the value on the first rank and zeros on the others",
    Op.RETAG: "changes the type alone",
}
_GOES: Final = {
    Op.ALL_GATHER.value: "an all_gather goes from S(dim) or V to R or I",
    Op.REDUCE_SCATTER.value: "a reduce_scatter goes from P to S(dim) or V",
    Op.ALL_REDUCE.value: "an all_reduce goes from P to R or I",
    Op.ALL_TO_ALL.value: "an all_to_all goes from S(dim) to S(dim) of another dim",
}

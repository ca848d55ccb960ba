"""Collectives of `torch.distributed` that are not ours: typed where no gradient is lost, and refused where one is.

In place, functional or through a process group, an all_reduce is an all_reduce. Of the functional ones torch has the
gradients, which are those of ours; the others autograd does not see: on a tensor that wants a gradient they are
refused, and the differentiable one is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.check.aliases import told
from meshwright.check.context import active
from meshwright.check.demand import tensors_of
from meshwright.check.function_collectives import axes_of
from meshwright.check.intercept import mode_is_on, place
from meshwright.check.memory import overwritten
from meshwright.check.mode import TypeCheck
from meshwright.check.refusal import Refused, change
from meshwright.check.rule import FUNCTIONAL
from meshwright.check.tag import Tag, read, typed, write, written
from meshwright.codes import Code
from meshwright.comm.followed import whole
from meshwright.comm.number import Origin, Source
from meshwright.types.kinds import I, P, R, S, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout


@dataclass(frozen=True)
class Raw:
    """takes: letters of the types that the input may be; gives: what the output then is; ours: what to call instead."""

    takes: str
    gives: SpmdType
    ours: str


RAW: Final = {
    "all_reduce": Raw("P", R, "all_reduce(x, {axis!r}, src=P, dst=R)"),
    "reduce": Raw("P", V, "all_reduce(x, {axis!r}, src=P, dst=R)"),
    "reduce_scatter": Raw("P", S(0), "reduce_scatter(x, {axis!r}, src=P, dst=S(0))"),
    "all_gather": Raw("VS", R, "all_gather(x, {axis!r}, src=S(0), dst=R)"),
    "gather": Raw("VS", V, "all_gather(x, {axis!r}, src=S(0), dst=R)"),
    "all_to_all": Raw("VS", V, "all_to_all(x, {axis!r}, src=V, dst=V)"),
    "broadcast": Raw("RIVS", R, "x as it is, where it is R; or all_gather(x, {axis!r}, src=V, dst=R)"),
    "scatter": Raw("RIV", V, "convert(x, {axis!r}, src=R, dst=V)"),
}
"""By what ranks do with one another."""

_IN_PLACE: Final = {
    "all_reduce": ("all_reduce", 0, 0),
    "reduce": ("reduce", 0, 0),
    "broadcast": ("broadcast", 0, 0),
    "reduce_scatter_tensor": ("reduce_scatter", 1, 0),
    "_reduce_scatter_base": ("reduce_scatter", 1, 0),
    "reduce_scatter": ("reduce_scatter", 1, 0),
    "all_gather_into_tensor": ("all_gather", 1, 0),
    "_all_gather_base": ("all_gather", 1, 0),
    "all_gather": ("all_gather", 1, 0),
    "all_to_all_single": ("all_to_all", 1, 0),
    "all_to_all": ("all_to_all", 1, 0),
    "gather": ("gather", 0, 1),
    "scatter": ("scatter", 1, 0),
}
"""Function of torch.distributed -> what it does, and which of its first two arguments it reads and writes."""
_NAMES: Final = {
    0: ("tensor", "output_tensor", "output", "output_tensor_list", "tensor_list"),
    1: ("input_tensor", "input", "input_list", "tensor", "scatter_list", "gather_list", "input_tensor_list"),
}


@place(lambda: dist, "get_rank")
def rank_of(original: Callable[..., Any], group: Any = None) -> Any:
    """The rank says of itself that it is another number on every rank."""
    check = active()
    if check is None or not mode_is_on():
        return original(group)
    check.look()
    text = "dist.get_rank()" if group is None else "dist.get_rank(group)"
    for axis, transport in check.mesh.items():
        if group is not None and getattr(transport, "group", None) is group:
            return whole(transport.index, Origin(Source.INDEX, frozenset({axis}), text))
    rank = check.rank if check.rank is not None and group is None else original(group)
    return whole(rank, Origin(Source.RANK, frozenset(axis for axis, n in check.degree.items() if n > 1), text))


@place(lambda: dist, *_IN_PLACE)
def called(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function of torch.distributed."""
    return _seen(original, original.__name__, args, kwargs)


@place(
    lambda: getattr(torch._C, "_distributed_c10d", None) and torch._C._distributed_c10d.ProcessGroup,
    "allreduce",
    "broadcast",
    "reduce",
    "allgather",
    "reduce_scatter",
    "alltoall",
    "alltoall_base",
    "all_gather_single",
    "reduce_scatter_single",
    "all_to_all_single",
    "send",
    "recv",
)
def called_on_group(original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
    """A method of a process group."""
    check = active()
    tensors = [x for argument in args for x in tensors_of(argument)]
    if check is not None and mode_is_on() and any(read(x).layout for x in tensors):
        name = getattr(original, "__name__", "collective")

        def refuse(check: TypeCheck, func: Any, args: Any, kwargs: Any) -> Any:
            raise Refused(
                f"ProcessGroup.{name} is called on a tensor that has a type",
                "a process group's own methods do not say which axis they go over, and autograd does not see them",
                "the collective of meshwright.spmd with the axis; or dist." + _PLAIN.get(name, name),
                code=Code.RAW_COLLECTIVE,
            )

        return check.run(refuse, original, args, kwargs)
    return original(group, *args, **kwargs)


_PLAIN: Final = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}


def _seen(original: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    check = active()
    if check is None or not mode_is_on():
        return original(*args, **kwargs)
    tensors = [x for argument in (*args, *kwargs.values()) for x in tensors_of(argument)]
    if not any(read(x).layout for x in tensors):
        return original(*args, **kwargs)

    def judged(check: TypeCheck, func: Any, args: Any, kwargs: Any) -> Any:
        what, source, target = _IN_PLACE[name]
        read_ = [] if source is None else list(tensors_of(_argument(args, kwargs, source)))
        outputs = None if target is None else _argument(args, kwargs, target)
        axes = _axes(check, kwargs.get("group") or next((a for a in args if isinstance(a, dist.ProcessGroup)), None))
        op = kwargs.get("op") or next((a for a in args if isinstance(a, dist.ReduceOp.RedOpType)), dist.ReduceOp.SUM)
        tag = _after(what, axes, read_, op)
        if what == "broadcast" and not check.local:
            _demand_uncut(axes, read_)
        with torch._C.DisableTorchFunction():
            result = original(*args, **kwargs)
            _apart(outputs, read_)
            if tag is not None:
                for x in tensors_of(outputs):
                    _put(x, typed(tag))
        return result

    return check.run(judged, original, args, dict(kwargs))


def _put(x: Tensor, tag: Tag) -> None:
    """What a tensor, and its memory by any other name, is from now on."""
    before, owner = read(x), read(x).owner
    if before.factors is not None and before.layout.sharded == tag.layout.sharded:  # reduced in place: of the same dims
        tag = typed(tag.layout, tag.counted, before.factors)
    write(x, tag)
    written(x)
    overwritten(x, tag)
    if owner is not None:
        told(x, owner)


def _demand_uncut(axes: tuple[str, ...], inputs: list[Tensor]) -> None:
    """Of what is one tensor over the ranks, no rank takes the positions of another in place of its own.

    Errors: `Refused`.
    """
    for x in inputs:
        for axis in axes:
            kind = read(x).layout.get(axis)
            if isinstance(kind, Shard):
                raise Refused(
                    f"broadcast of torch.distributed over axis {axis!r} takes a tensor that is {kind!r}",
                    "the ranks hold different positions of it, and would all hold those of one",
                    change("x", axis, kind, R),
                    code=Code.RAW_COLLECTIVE,
                )


def _apart(outputs: Any, inputs: list[Tensor]) -> None:
    """A rank's own part may stand for itself in the list of all parts, of which it has the type there alone."""
    if isinstance(outputs, list):
        for place_, x in enumerate(outputs):
            if any(x is each for each in inputs):
                outputs[place_] = x.view_as(x)


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], place_: int) -> Any:
    if len(args) > place_:
        return args[place_]
    return next((kwargs[name] for name in _NAMES[place_] if name in kwargs), None)


def _axes(check: TypeCheck, group: Any) -> tuple[str, ...]:
    """The axes of the current mesh whose ranks are those of `group`: one, or all of them for the whole world.

    Errors: `Refused` where there are none.
    """
    found = axes_of(check.mesh, group)
    if found is not None:
        return found
    raise Refused(
        "a collective of torch.distributed runs over a group that is no axis of the current mesh",
        "which ranks take part decides what the result is",
        f"the collective of meshwright.spmd over one of {', '.join(map(repr, check.mesh)) or 'no axes'}; or enter a "
        "mesh that names the group: set_current_mesh({'tp': group})",
        code=Code.RAW_COLLECTIVE,
    )


def _after(
    what: str, axes: tuple[str, ...], inputs: list[Tensor], op: Any = "sum", *, differentiable: bool = False
) -> SpmdLayout | None:
    """The layout of what a raw collective returns.

    Errors: `Refused` where it would lose a gradient, or does not fit the type.
    """
    layout: SpmdLayout | None = None
    for x in inputs:
        layout = read(x).layout
        for axis in axes:
            if x.requires_grad and torch.is_grad_enabled() and not differentiable:
                raise Refused(
                    f"{what} of torch.distributed over axis {axis!r} takes a tensor that wants a gradient",
                    "autograd does not see it: the gradient would be lost, or would not be reduced",
                    _ours(what, axis, layout.get(axis)),
                    code=Code.RAW_COLLECTIVE,
                )
            layout = _on_axis(what, axis, layout, op)
    return layout


def _ours(what: str, axis: str, kind: SpmdType | None) -> str:
    """What to write instead, of a tensor of that type."""
    if kind in (R, I) and what in (*_REDUCING, *_GATHERING):
        return f"leave the call out: every rank of axis {axis!r} has all of it"
    if isinstance(kind, Shard) and what == "all_to_all":
        return f"all_to_all(x, {axis!r}, src={kind!r}, dst=S(dim)), with the dim that is cut from then on"
    if (isinstance(kind, Shard) and what in (*_REDUCING, *_GATHERING)) or (kind is P and what in _GATHERING):
        return change("x", axis, kind, R)
    if kind is V and what in _REDUCING:
        ours = RAW[what].ours.format(axis=axis)
        return f"V -> P: reinterpret(x, {axis!r}, src=V, dst=P), if their sum is meant, then {ours}"
    if kind is P and what == "all_reduce":
        return change("x", axis, P, R)
    return RAW[what].ours.format(axis=axis)


_REDUCING: Final = ("all_reduce", "reduce", "reduce_scatter")
_GATHERING: Final = ("all_gather", "gather")


def _on_axis(what: str, axis: str, layout: SpmdLayout, op: Any) -> SpmdLayout:
    raw, kind = RAW[what], layout.get(axis)
    if kind is None:
        return layout
    summed = str(op).rsplit(".", 1)[-1].lower() in ("sum", "0")
    takes = "VS" if what == "all_reduce" and not summed else raw.takes
    if kind.letter not in takes and not summed and kind in (R, I):
        raise Refused(
            f"{what} (op={op}) of torch.distributed over axis {axis!r} takes a tensor that is {kind!r}",
            "every rank holds the whole value already: the maximum, minimum or mean over the ranks is that value",
            f"leave the call out: nothing is to be reduced on axis {axis!r}",
            code=Code.RAW_COLLECTIVE,
        )
    if kind.letter not in takes:
        raise Refused(
            f"{what}{'' if summed else f' (op={op})'} of torch.distributed over axis {axis!r} takes a tensor that is "
            f"{kind!r}",
            _WHY.get(kind.letter, "what it starts from is what the tensor is")
            if summed
            else "the maximum, minimum or mean of the parts of a sum is not that of the sum",
            _ours(what, axis, kind),
            code=Code.RAW_COLLECTIVE,
        )
    gives = S(0) if what == "all_to_all" and isinstance(kind, Shard) and kind.dim == 0 else raw.gives
    return layout.replace(**{axis: gives})


_WHY: Final = {
    "R": "every rank holds the whole value already: to reduce it would count it once a rank",
    "I": "every rank holds the whole value already: to reduce it would count it once a rank",
    "S": "the ranks hold different positions, which do not add up to one another",
    "V": "the ranks hold values of their own; that their sum is meant is to be said: reinterpret V -> P",
    "P": "the ranks hold parts of a sum, which is to be added up first",
}


def _functional(what: str, group_at: int) -> Callable[..., Any]:
    def judged(check: TypeCheck, func: Any, args: Any, kwargs: Any) -> Any:
        x = args[0]
        if not read(x).layout:
            return check.note_plain(func(*args, **kwargs), [check.operand(x)])
        op = args[1] if what in ("all_reduce", "reduce_scatter") else "sum"
        layout = _after(what, _axes(check, args[group_at]), [x], op, differentiable=what != "broadcast")
        result = func(*args, **kwargs)
        if layout is not None:
            write(result, typed(layout))
        return result

    return judged


FUNCTIONAL.update(
    {
        "all_reduce": _functional("all_reduce", 2),
        "all_gather_into_tensor": _functional("all_gather", 2),
        "reduce_scatter_tensor": _functional("reduce_scatter", 3),
        "all_to_all_single": _functional("all_to_all", 3),
        "broadcast": _functional("broadcast", 2),
    }
)


def _waited(check: TypeCheck, func: Any, args: Any, kwargs: Any) -> Any:
    result = func(*args, **kwargs)
    write(result, read(args[0]))
    return result


FUNCTIONAL["wait_tensor"] = _waited


FUNCTIONAL["_wrap_tensor_autograd"] = _waited

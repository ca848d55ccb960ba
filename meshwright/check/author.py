"""What authors say of tensors beyond `assert_type`, and what they may ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Final, NamedTuple, TypeVar, cast

from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from meshwright.check import source
from meshwright.check.context import active, local
from meshwright.check.elsewhere import patterns
from meshwright.check.operand import on_dims
from meshwright.check.refusal import change
from meshwright.check.tag import Tag, read, typed, write
from meshwright.codes import Code
from meshwright.comm.calls import demand_tensor
from meshwright.comm.declare import assert_type
from meshwright.comm.meshes import Meshlike, view_of
from meshwright.comm.scope import find
from meshwright.comm.view import Axis
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import FLAG, demand, shown
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


class _Infer:
    """`in_types=Infer`: what comes in is taken as it is."""

    def __repr__(self) -> str:
        return "Infer"


Infer: Final = _Infer()


def local_map(*, in_types: Any = Infer, out_types: Any, in_grad_types: Any = None) -> Callable[[F], F]:
    """Run a function on local tensors: its body is judged as in `local()`, its arguments and results as declared.

    in_types, out_types: a type for each positional argument and each result, {axis: type}, `PartitionSpec` or None for
    what is no tensor; nested as they are. in_grad_types: the types of the gradients of the arguments, {axis: type}
    each, where they are not the duals of `in_types`: a body in which R meets what differs from rank to rank has a
    gradient that is P, which the dual of R is; of I it would be wrong, and is refused.

    Errors: `SpmdTypeError` where an argument or a result is of another type.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def region(*args: Any, **kwargs: Any) -> Any:
            if active() is None:
                return function(*args, **kwargs)
            if in_types is not Infer:
                _state_each(args, in_types, "argument", function)
            _demand_gradients(args, kwargs, in_types, in_grad_types, function)
            with local():
                result = function(*args, **kwargs)
            return _state_each(result, out_types, "result", function)

        return region  # type: ignore[return-value]

    return decorate


def _leaf(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(kind, SpmdType) for kind in value.values())
    return value is None or isinstance(value, PartitionSpec)


def _state_each(values: Any, types: Any, what: str, function: Callable[..., Any]) -> Any:
    """State or verify the type of every tensor of a tree."""
    declared, shape = tree_flatten(types, is_leaf=_leaf)
    alone = shape.num_leaves == 1 and _leaf(types)
    found = [values] if alone else _nested(shape, values, f"{what}s", function)
    if isinstance(values, tuple) and _leaf(types) and len(values) == 1 and what == "argument":
        found = [values[0]]
    if len(found) != len(declared):
        raise SpmdTypeError(_mismatch(function, f"{len(found)} {what}s, and {len(declared)} types are declared"))
    results = []
    for place, (value, kind) in enumerate(zip(found, declared, strict=True)):
        if isinstance(value, Tensor) == (kind is None):
            raise SpmdTypeError(_mismatch(function, f"{what} {place} is {type(value).__name__}, declared {kind!r}"))
        if kind is not None:
            layout = kind.layout() if isinstance(kind, PartitionSpec) else kind
            try:
                value = assert_type(value, layout)
            except SpmdTypeError as error:
                raise SpmdTypeError(
                    [_in_region(problem, function, what, place) for problem in error.problems]
                ) from None
        results.append(value)
    return tree_unflatten(results, shape) if len(results) != 1 or not _leaf(types) else results[0]


def _nested(shape: TreeSpec, values: Any, what: str, function: Callable[..., Any]) -> list[Any]:
    """The values, one for each type that is declared.

    Errors: `SpmdTypeError` where they are nested in another way than the types are.
    """
    try:
        return shape.flatten_up_to(values)
    except ValueError as error:
        raise SpmdTypeError(
            _mismatch(function, f"the {what} are nested in another way than the types that are declared: {error}")
        ) from None


def _in_region(problem: Problem, function: Callable[..., Any], what: str, place: int) -> Problem:
    return Problem(
        where=f"{problem.where}, {what} {place} of {function.__name__}",
        what=problem.what,
        why="what a region declares of its arguments and results is verified where they enter and leave it",
        fix=problem.fix,
        code=Code.REGION,
    )


def _mismatch(function: Callable[..., Any], what: str) -> Problem:
    return Problem(
        where=f"{source.line()}, {function.__name__}",
        what=what,
        why="a region declares a type for each tensor that enters or leaves it, and None for what is no tensor",
        fix="in_types=({axis: type}, ...), out_types=... nested as the arguments and results are",
        code=Code.REGION,
    )


def _demand_gradients(
    args: Any, kwargs: Mapping[str, Any], in_types: Any, in_grad_types: Any, function: Callable[..., Any]
) -> None:
    """What is declared of a gradient is the dual of the argument's type; where R meets what differs it is declared."""
    if in_types is Infer:
        values, shape = tree_flatten(_tupled(args))
        layouts = [layout_of(value) if isinstance(value, Tensor) else None for value in values]
        alone = False
    else:
        types, shape = tree_flatten(_tupled(in_types), is_leaf=_leaf)
        alone = len(types) == 1 and _leaf(in_types)
        values = [args[0]] if alone else _nested(shape, _tupled(args), "arguments", function)
        layouts = [None if kind is None else SpmdLayout(_layout(kind)) for kind in types]
    grads: list[Any] = [None] * len(values)
    if in_grad_types is not None:
        grads = [in_grad_types] if alone else _nested(shape, _tupled(in_grad_types), "in_grad_types", function)
    for place, (layout, grad) in enumerate(zip(layouts, grads, strict=True)):
        if not _leaf(grad):
            raise SpmdTypeError(_mismatch(function, f"{shown(grad)} is declared of the gradient of argument {place}"))
        for axis, stated in (_layout(grad) if grad is not None else {}).items():
            if layout is not None and axis in layout and stated is not layout[axis].dual:
                raise SpmdTypeError(
                    Problem(
                        where=f"{source.line()}, argument {place} of {function.__name__}",
                        what=f"it is {layout[axis]!r} on axis {axis!r} and its gradient is declared {stated!r}",
                        why=f"the gradient of {layout[axis]!r} is {layout[axis].dual!r}",
                        fix=f"in_grad_types with {layout[axis].dual!r} on {axis!r}; or enter the region as "
                        f"{stated.dual!r}: {change('x', axis, layout[axis], stated.dual)}",
                        code=Code.REGION,
                    )
                )
    entering = [
        _Entering(f"argument {place}", value, layout, _layout(grad) if grad is not None else {})
        for place, (value, layout, grad) in enumerate(zip(values, layouts, grads, strict=True))
        if isinstance(value, Tensor) and layout is not None
    ]
    _demand_declared([*entering, *_undeclarable(kwargs, function)], function)


def _tupled(tree: Any) -> Any:
    """The tree with tuples in place of lists: how types are nested does not tell them apart."""
    if type(tree) in (list, tuple):
        return tuple(map(_tupled, tree))
    return tree


class _Entering(NamedTuple):
    """A tensor that a region takes. grad: what is declared of its gradient; None where no place is to declare it."""

    name: str
    value: Tensor
    layout: Types
    grad: Types | None


def _undeclarable(kwargs: Mapping[str, Any], function: Callable[..., Any]) -> Iterator[_Entering]:
    """What a region takes by keyword, and what its function closes over."""
    for name, value in kwargs.items():
        for x in tree_leaves(value):
            if isinstance(x, Tensor):
                yield _Entering(f"argument {name!r}", x, layout_of(x), None)
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        try:
            x = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if isinstance(x, Tensor):
            yield _Entering(f"{name!r} of the closure", x, layout_of(x), None)


def _layout(kind: Any) -> Types:
    return kind.layout() if isinstance(kind, PartitionSpec) else cast(Types, kind)


def _demand_declared(entering: Sequence[_Entering], function: Callable[..., Any]) -> None:
    """Where R meets what differs from rank to rank, its gradient is declared.

    Errors: `SpmdTypeError` where it is not.
    """
    for one in entering:
        if not one.value.requires_grad:
            continue
        for axis, kind in one.layout.items():
            others = [other.layout[axis] for other in entering if axis in other.layout]
            differs = [other for other in others if other is V or isinstance(other, Shard)]
            if kind is R and differs and axis not in (one.grad or {}):
                declared = f"in_grad_types with {{{axis!r}: P}} for {one.name}"
                if one.grad is None:
                    declared = f"{one.name} as a positional argument, with {{{axis!r}: P}} for it in in_grad_types"
                raise SpmdTypeError(
                    Problem(
                        where=f"{source.line()}, {one.name} of {function.__name__}",
                        what=f"it is R on axis {axis!r} and meets {differs[0]!r} in a region that declares no gradient",
                        why=f"R meets {differs[0]!r}: the gradient is P, each rank's own part; there is no default",
                        fix=declared,
                        code=Code.REGION,
                    )
                )


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

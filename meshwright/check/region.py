"""Regions: functions on local tensors, whose arguments, results and gradients have declared types."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from meshwright.check import source
from meshwright.check.author import Types, layout_of
from meshwright.check.context import active, local
from meshwright.check.entering import Entering, Region, demand_declared
from meshwright.check.refusal import Refused, change
from meshwright.codes import Code
from meshwright.comm.declare import assert_type
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import shown
from meshwright.types.kinds import SpmdType
from meshwright.types.layout import SpmdLayout
from meshwright.types.partition import PartitionSpec

F = TypeVar("F", bound=Callable[..., Any])


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
            check = active()
            if check is None:
                return function(*args, **kwargs)
            if isinstance(in_types, (tuple, list)) and len(in_types) > len(args):
                args, kwargs = _in_order(function, args, kwargs)
            if in_types is not Infer:
                _state_each(args, in_types, "argument", function)
            declared = _declared(args, in_types, in_grad_types, function)
            with local(), Region(declared, args, kwargs, function).entered(check):
                result = function(*args, **kwargs)
            return _state_each(result, out_types, "result", function)

        return region  # type: ignore[return-value]

    return decorate


def called(function: Callable[..., Any]) -> str:
    """What a function, a module, or what has some arguments already, is called."""
    if isinstance(function, partial):
        return called(function.func)
    return getattr(function, "__name__", type(function).__name__)


def _in_order(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments in the order of the function's parameters, in which their types are declared."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # Python says so where the function is called
        return args, kwargs
    return bound.args, bound.kwargs


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
        where=f"{problem.where}, {what} {place} of {called(function)}",
        what=problem.what,
        why="what a region declares of its arguments and results is verified where they enter and leave it",
        fix=problem.fix,
        code=Code.REGION,
    )


def _mismatch(function: Callable[..., Any], what: str) -> Problem:
    return Problem(
        where=f"{source.line()}, {called(function)}",
        what=what,
        why="a region declares a type for each tensor that enters or leaves it, and None for what is no tensor",
        fix="in_types=({axis: type}, ...), out_types=... nested as the arguments and results are",
        code=Code.REGION,
    )


def _declared(args: Any, in_types: Any, in_grad_types: Any, function: Callable[..., Any]) -> list[Entering]:
    """The tensors among the positional arguments, with what is declared of them and of their gradients.

    Errors: `SpmdTypeError` where a gradient is not the dual of the argument's type, or is not declared where R meets
    what differs.
    """
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
                        where=f"{source.line()}, argument {place} of {called(function)}",
                        what=f"it is {layout[axis]!r} on axis {axis!r} and its gradient is declared {stated!r}",
                        why=f"the gradient of {layout[axis]!r} is {layout[axis].dual!r}",
                        fix=f"in_grad_types with {layout[axis].dual!r} on {axis!r}; or enter the region as "
                        f"{stated.dual!r}: {change('x', axis, layout[axis], stated.dual)}",
                        code=Code.REGION,
                    )
                )
    flows = torch.is_grad_enabled()
    entering = [
        Entering(f"argument {place}", layout, flows and value.requires_grad, _layout(grad) if grad is not None else {})
        for place, (value, layout, grad) in enumerate(zip(values, layouts, grads, strict=True))
        if isinstance(value, Tensor) and layout is not None
    ]
    try:
        demand_declared(entering)
    except Refused as refused:
        where = f"{source.line()}, {called(function)}"
        raise SpmdTypeError(
            Problem(where=where, what=refused.what, why=refused.why, fix=refused.fix, code=refused.code)
        ) from None
    return entering


def _tupled(tree: Any) -> Any:
    """The tree with tuples in place of lists: how types are nested does not tell them apart."""
    if type(tree) in (list, tuple):
        return tuple(map(_tupled, tree))
    return tree


def _layout(kind: Any) -> Types:
    return kind.layout() if isinstance(kind, PartitionSpec) else cast(Types, kind)

"""Tensors that are made, not computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import torch
from torch import Tensor

from meshwright.check.algebra import Result
from meshwright.check.context import active
from meshwright.check.demand import demand_no_value, found_in, tensors_of
from meshwright.check.intercept import mode_is_on, place
from meshwright.check.of_numbers import LINES, MADE, of_line, of_numbers
from meshwright.check.operand import Operand
from meshwright.check.refusal import not_constant, placed, typed_number, varying_seed
from meshwright.check.rule import RULES, forms, pure, special
from meshwright.check.seeds import varying_of
from meshwright.check.tag import CONSTANT, EMPTY, UNIFORM, UNKNOWN, ZERO, Tag, constant, read, typed, write
from meshwright.comm.number import Number, Source, Whole, is_length
from meshwright.types.kinds import I, P, R, S, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

_ZEROS: Final = "zeros zeros_like new_zeros"
_UNIFORM: Final = "ones full new_ones new_full"
_EMPTY: Final = "empty new_empty empty_like empty_strided"
_CONSTANTS: Final = (
    "arange linspace logspace eye tensor as_tensor scalar_tensor tril_indices triu_indices "
    "new_tensor from_numpy asarray"
)
_RANDOM: Final = (
    "rand randn randint randperm "
    "uniform_ normal_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_ trunc_normal_ kaiming_uniform_ "
    "kaiming_normal_ xavier_uniform_ xavier_normal_"
)


def _makes(names: str, tag: Tag) -> None:
    def make(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        check.note_call(func.__name__, (*args, *kwargs.values()))
        varying = varying_of(check, kwargs.get("generator")) if tag is UNKNOWN else frozenset()
        filled = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None) if _fills(func) else None
        held = UNKNOWN if filled is None else read(filled)
        for axis, kind in held.layout.items():
            if axis in varying and kind in (R, I, P):
                raise varying_seed(axis, kind, func.__name__)
        if held.layout:
            _demand_alike(check, func.__name__, held, filled, (args[1:], tuple(kwargs.values())))
        made = held if held.layout else _of_arguments(check, func, args, kwargs, tag, varying)
        if not check.local:
            made = _cut_as_asked(made, func.__name__, args, kwargs)
        result: Tensor = func(*args, **kwargs)
        write(result, made)
        return result

    special(*(function for name in names.split() for function in forms(name)))(make)
    special(*(function for name in names.split() if (function := getattr(torch.nn.init, name, None))))(make)


_SIZED: Final = {
    *("zeros", "ones", "full", "empty", "rand", "randn", "randint"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
}
"""Factories that are told the lengths of what they make."""


def _cut_as_asked(made: Tag, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tag:
    """`made`, cut along each dim that is as long as what a rank holds of a dim which is cut so.

    Along two dims over one axis no tensor is cut: such a one is no part of what one device makes, and V.
    """
    if name in ("zeros_like", "empty_like"):
        like = read(args[0] if args else kwargs["input"])
        cuts = SpmdLayout({axis: kind for axis, kind in like.layout.items() if isinstance(kind, Shard)})
        return made if made.fresh is None else constant(cuts, made.fresh, like.factors if cuts else None)
    if name not in _SIZED:
        return made
    given = args[1:] if name.startswith("new_") else args
    sizes = kwargs.get("size", next((each for each in given if isinstance(each, (list, tuple))), given))
    asked = [
        (axis, dim)
        for dim, size in enumerate(sizes)
        if is_length(size) and size.origin.share
        for axis in size.origin.order or size.origin.axes
    ]
    own = {axis for size in sizes if _is_place(size) for axis in size.origin.axes}
    if not asked and not own:
        return made
    kinds: dict[str, SpmdType] = {}
    for axis, dim in asked:
        kinds[axis] = V if axis in kinds else S(dim)
    kinds |= dict.fromkeys(sorted(own), V)
    layout = SpmdLayout(kinds)
    if made.fresh is not None:
        return constant(layout, made.fresh)
    return typed(layout.replace(**{axis: kind for axis, kind in made.layout.items() if axis not in layout}))


def _is_place(value: Any) -> TypeGuard[Number]:
    return isinstance(value, Number) and value.origin.source is Source.INDEX


_BY_FAN: Final = {
    "kaiming_uniform_": "fan_in",
    "kaiming_normal_": "fan_in",
    "xavier_uniform_": "both",
    "xavier_normal_": "both",
}
"""Random values as large as the lengths of a weight ask for -> which of them."""


def _demand_alike(check: TypeCheck, name: str, held: Tag, filled: Tensor | None, values: Any) -> None:
    """What fills a tensor that has a type is asked for by numbers that one device would have.

    Errors: `Refused`.
    """
    for number in found_in(values, Number):
        demand_no_value(check, number, MADE)
        for axis in number.origin.axes if number.origin.source is Source.INDEX else ():
            if held.layout.get(axis) in (R, I, P):
                raise placed(axis, name, held.layout[axis])
    if name in _BY_FAN and filled is not None and not check.local:
        cuts = check.operand(filled).cuts
        for origin in cuts[1:] if _BY_FAN[name] == "fan_in" and "fan_out" not in values[-1] else cuts:
            if origin is not None:
                raise typed_number(Whole(0, origin), f"the fan by which {name} scales")


def _of_arguments(
    check: TypeCheck,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    tag: Tag,
    varying: frozenset[str],
) -> Tag:
    """The tag of what a factory makes: of values that have a type, of numbers that have an origin, or `tag`."""
    name = func.__name__
    given = args[1:] if name.startswith("new_") or name.endswith("_like") else args
    for x in tensors_of((given, tuple(kwargs.values()))):
        if not read(x).layout:
            continue
        if name in _COPIES:
            return typed(read(x).layout, factors=read(x).factors)
        for axis, kind in read(x).layout.items():
            if kind not in (R, I):
                raise not_constant(axis, kind, name)
    if varying:
        return typed(SpmdLayout(dict.fromkeys(sorted(varying), V)))
    if tag in (ZERO, UNKNOWN):
        return tag
    values = (args, tuple(kwargs.values()))
    if name in _FILLED:
        demand_no_value(check, kwargs.get("fill_value", args[-1] if args else None), MADE)
    if name in _COPIES or name == "scalar_tensor":
        for number in found_in(values, Number):
            demand_no_value(check, number, MADE)
        if type(value := next(iter((*given, *kwargs.values())), None)) in (int, float) and value == 0:
            return ZERO
    if name in LINES:
        return of_line(check, name, args, kwargs)
    return of_numbers(values, tag)


_COPIES: Final = ("tensor", "as_tensor", "asarray", "new_tensor")
_FILLED: Final = ("full", "new_full")


def _fills(func: Callable[..., Any]) -> bool:
    return func.__name__.endswith("_") and not func.__name__.startswith("new_")


_makes(_ZEROS, ZERO)
_makes(_CONSTANTS, CONSTANT)
_makes(_UNIFORM, UNIFORM)
_makes(_EMPTY, EMPTY)
_makes(_RANDOM, UNKNOWN)


@place(lambda: torch.nn.init, "_no_grad_trunc_normal_")
def truncated(original: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """One random op to whoever calls it: each rank draws anew what is out of bounds until nothing of its own is."""
    check = active()
    if check is None or not mode_is_on():
        filled: Tensor = original(tensor, *args, **kwargs)
        return filled

    def trunc_normal_(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return original(*args, **kwargs)

    made: Tensor = check.run(RULES[torch.nn.init.trunc_normal_], trunc_normal_, (tensor, *args), kwargs)
    return made


@pure("ones_like", "full_like")
def like(input: Operand, *args: Any, **kwargs: Any) -> Result:
    """One value in the shape of `input`: the same on every rank, cut where `input` is cut."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Operand) and any(kind not in (R, I) for kind in value.layout.values()):
            raise TypeError("a value that is not the same on every rank")
        if is_length(value):
            raise typed_number(value, MADE)
    types = {axis: R if kind is P else kind for axis, kind in input.tag.layout.items()}
    return Result(typed(SpmdLayout(types), factors=input.tag.factors), input.whole)

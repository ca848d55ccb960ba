"""Ops on lists of tensors, as optimizers make them: each list position is judged by the op's own rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from meshwright.check.algebra import demand_kept
from meshwright.check.demand import demand_no_value
from meshwright.check.formula import Formula
from meshwright.check.operand import Operand
from meshwright.check.refusal import Refused, change, not_linear
from meshwright.check.rule import INFER, RULES, Pure, special
from meshwright.check.tag import read, typed, write, written
from meshwright.codes import Code
from meshwright.types.kinds import I, P, R, SpmdType, V
from meshwright.types.layout import SpmdLayout

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

_NAMES: Final = (
    "abs add addcdiv addcmul ceil clamp_max clamp_min copy cos div erf exp expm1 floor lerp lgamma log log10 log1p "
    "log2 maximum minimum mul neg norm pow reciprocal round rsqrt sigmoid sign sin sqrt sub tan tanh trunc zero"
)


def _listwise(name: str) -> Callable[..., tuple[Any, ...]]:
    def infer(first: tuple[Any, ...], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """As the op, for each position of the lists."""

        def pick(value: Any, n: int) -> Any:
            return value[n] if type(value) is tuple else value

        results = []
        for n, one in enumerate(first):
            given = (one, *(pick(value, n) for value in args))
            try:
                results.append(INFER[name](*given, **{name: pick(value, n) for name, value in kwargs.items()}))
            except Refused as refused:
                refused.operands = tuple(value for value in given if isinstance(value, Operand))
                raise
        return tuple(results)

    return infer


_STEP: Final = Formula.read("input, gradient: input + ~gradient")


@special(*(getattr(torch, name) for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")))
def fused(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A whole optimizer step: parameters and their states keep the parameters' types, which the gradients fit."""
    parameters, gradients, *states = args
    for name, value in kwargs.items():
        demand_no_value(check, value, f"the {name} of an optimizer")
    for number, (x, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        held, given = check.operand(x), check.operand(gradient)
        if not held.known:
            continue
        demand_kept(func.__name__, held, _STEP.infer(func.__name__, (held, given), {}))
        for state in (each[number] for each in states if len(each) > number):
            if state.shape == x.shape and not check.operand(state).known:
                write(state, typed(held.tag.layout, factors=held.tag.factors))
    result = func(*args, **kwargs)
    for each in (*parameters, *(state for several in states for state in several)):
        written(each)
    return result


@special(torch._amp_foreach_non_finite_check_and_unscale_)
def unscaled(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Gradients are scaled in place; whether one is not finite is seen of what this rank holds of them."""
    gradients, found, scale = args
    _demand_alike(check, func.__name__, scale)
    types: dict[str, SpmdType] = dict(read(found).layout)
    for gradient in gradients:
        for axis, kind in check.operand(gradient).layout.items():
            if kind is P:
                raise not_linear(axis, "a gradient", "the search for what is not finite")
            if kind not in (R, I):
                types[axis] = V
            types.setdefault(axis, R)
    result = func(*args, **kwargs)
    for gradient in gradients:
        written(gradient)
    if types:
        write(found, typed(SpmdLayout(types)))
    return result


@special(torch._amp_update_scale_)
def rescaled(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The scale of the next step, which all ranks must have alike."""
    for x in args:
        if isinstance(x, Tensor):
            _demand_alike(check, func.__name__, x)
    result = func(*args, **kwargs)
    for x in args[:2]:
        written(x)
    return result


def _demand_alike(check: TypeCheck, op: str, x: Tensor) -> None:
    for axis, kind in check.operand(x).layout.items():
        if kind not in (R, I):
            raise Refused(
                f"{op} takes a number that is {kind!r} on axis {axis!r}",
                "ranks that find other gradients not finite would go on with other scales, and skip other steps",
                f"the largest over the ranks: {change('found_inf', axis, V, R)}, then its max()",
                code=Code.READ,
            )


for _name in _NAMES.split():
    for _foreach, _writes in ((f"_foreach_{_name}", False), (f"_foreach_{_name}_", True)):
        if hasattr(torch, _foreach):
            RULES[getattr(torch, _foreach)] = Pure(_foreach, _listwise(_name), writes=_writes)

"""Tensors that are made, not computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from meshwright.check.algebra import Result
from meshwright.check.operand import Operand
from meshwright.check.refusal import varying_seed
from meshwright.check.rule import forms, pure, special
from meshwright.check.tag import CONSTANT, UNKNOWN, ZERO, Tag, read, typed, write
from meshwright.comm.number import Number, Source
from meshwright.types.kinds import I, P, R, V
from meshwright.types.layout import SpmdLayout

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

_ZEROS: Final = "zeros zeros_like new_zeros"
_CONSTANTS: Final = (
    "ones full empty arange linspace logspace eye tensor as_tensor scalar_tensor tril_indices triu_indices "
    "new_ones new_full new_empty new_tensor empty_like from_numpy asarray empty_strided"
)
_RANDOM: Final = (
    "rand randn randint randperm "
    "uniform_ normal_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_ trunc_normal_ kaiming_uniform_ "
    "kaiming_normal_ xavier_uniform_ xavier_normal_"
)


def _makes(names: str, tag: Tag) -> None:
    def make(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        filled = args[0] if args else kwargs.get("tensor")  # as torch.nn.init names it
        held = read(filled) if isinstance(filled, Tensor) and _fills(func) else UNKNOWN
        for axis, kind in held.layout.items():
            if axis in check.varying_seed and kind in (R, I, P):
                raise varying_seed(axis, kind, func.__name__)
        result: Tensor = func(*args, **kwargs)
        if held.layout:
            write(result, held)
        else:
            write(result, _of_numbers(check, args, kwargs) if tag is CONSTANT else tag)
        return result

    special(*(function for name in names.split() for function in forms(name)))(make)
    special(*(function for name in names.split() if (function := getattr(torch.nn.init, name, None))))(make)


def _fills(func: Callable[..., Any]) -> bool:
    return func.__name__.endswith("_") and not func.__name__.startswith("new_")


def _of_numbers(check: TypeCheck, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tag:
    """The tag of a tensor that is made of Python numbers: V where one is a rank's place on an axis.

    Of one that is made of the rank in the world nothing is known: its author has to say what it is.
    """
    axes: set[str] = set()
    for value in _numbers((args, tuple(kwargs.values()))):
        if value.origin.source is Source.RANK:
            return UNKNOWN
        if value.origin.source is Source.INDEX:
            axes |= value.origin.axes
    return typed(SpmdLayout(dict.fromkeys(sorted(axes), V))) if axes else CONSTANT


def _numbers(value: Any) -> Iterator[Number]:
    if isinstance(value, Number):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _numbers(each)


_makes(_ZEROS, ZERO)
_makes(_CONSTANTS, CONSTANT)
_makes(_RANDOM, UNKNOWN)


@pure("ones_like", "full_like")
def like(input: Operand, *args: Any, **kwargs: Any) -> Result:
    """One value in the shape of `input`: the same on every rank, cut where `input` is cut."""
    types = {axis: R if kind is P else kind for axis, kind in input.tag.layout.items()}
    return Result(typed(SpmdLayout(types), factors=input.tag.factors), input.whole)

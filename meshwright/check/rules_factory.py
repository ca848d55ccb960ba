"""Tensors that are made, not computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from meshwright.check.algebra import Result
from meshwright.check.operand import Operand
from meshwright.check.rule import forms, pure, special
from meshwright.check.tag import CONSTANT, UNKNOWN, ZERO, typed, write
from meshwright.types.kinds import P, R

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

_ZEROS: Final = "zeros zeros_like new_zeros"
_CONSTANTS: Final = (
    "ones full empty arange linspace logspace eye tensor as_tensor scalar_tensor tril_indices triu_indices "
    "new_ones new_full new_empty new_tensor empty_like from_numpy asarray empty_strided"
)
_RANDOM: Final = (
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial poisson "
    "uniform_ normal_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_ trunc_normal_ kaiming_uniform_ "
    "kaiming_normal_ xavier_uniform_ xavier_normal_"
)


def _makes(names: str, tag: Any) -> None:
    def make(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        result: Tensor = func(*args, **kwargs)
        write(result, tag)
        return result

    special(*(function for name in names.split() for function in forms(name)))(make)
    special(*(function for name in names.split() if (function := getattr(torch.nn.init, name, None))))(make)


_makes(_ZEROS, ZERO)
_makes(_CONSTANTS, CONSTANT)
_makes(_RANDOM, UNKNOWN)


@pure("ones_like", "full_like")
def like(input: Operand, *args: Any, **kwargs: Any) -> Result:
    """One value in the shape of `input`: the same on every rank, cut where `input` is cut."""
    types = {axis: R if kind is P else kind for axis, kind in input.layout.items()}
    return Result(typed(type(input.layout)(types)), input.whole)

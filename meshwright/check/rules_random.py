"""Random numbers: of the type of the generator that draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.check import rules_attention as rules_attention
from meshwright.check import rules_factory as rules_factory
from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.refusal import not_linear, typed_number, varying_seed
from meshwright.check.rule import INFER, RULES, Pure, forms, special
from meshwright.check.seeds import varying_of
from meshwright.check.tag import read, typed
from meshwright.check.term import Term, linear
from meshwright.comm.number import is_length
from meshwright.types.kinds import I, P, R
from meshwright.types.layout import SpmdLayout

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

_MASKING: Final = "dropout dropout_ alpha_dropout feature_dropout feature_alpha_dropout dropout1d dropout2d dropout3d"
"""Each position is multiplied by a random one."""
_SHAPED: Final = "rand_like randn_like randint_like bernoulli normal multinomial poisson rrelu"
"""Random values in the shape of an argument, or drawn by it."""


def _judged(
    check: TypeCheck,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    infer: Callable[..., Any],
) -> Any:
    """A call that draws random numbers: `infer` is told on which axes they differ."""
    name = func.__name__.rstrip("_")
    generator = kwargs.get("generator")
    varying = varying_of(check, generator)
    kinds = [kind for x in (*args, *kwargs.values()) if isinstance(x, Tensor) for kind in read(x).layout.values()]
    if all(kind in (R, I, P) for kind in kinds):  # one seed for all ranks is what makes them alike
        check.note_call("seed", (torch.initial_seed() if generator is None else generator.initial_seed(),))
    writes = func.__name__.endswith("_") and not func.__name__.startswith("__")
    return check.judge(Pure(name, partial(infer, varying), writes=writes), func, args, kwargs)


def _drawn(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A random op on a tensor: judged like the product with a random tensor of the generator's type.

    Of numbers alone, as `torch.normal(0.0, 0.02, size)`, it makes a tensor as `torch.randn` does.
    """
    if not any(isinstance(x, Tensor) for x in (*args, *kwargs.values())):
        made: Tensor = RULES[torch.randn](check, func, args, kwargs)
        return made
    return _judged(check, func, args, kwargs, partial(_infer, func.__name__.rstrip("_")))


special(*(function for name in (_MASKING + " " + _SHAPED).split() for function in forms(name)))(_drawn)


def _infer(name: str, varying: frozenset[str], input: Operand, *args: Any, **kwargs: Any) -> Result:
    p = args[0] if args else kwargs.get("p", 0.5)
    if is_length(p):
        raise typed_number(p, f"the p of {name}")
    training = args[1] if len(args) > 1 else kwargs.get("training", kwargs.get("train", True))
    if name in _MASKING.split() and (not training or p == 0):
        return _as(name, input, linear())
    if kwargs.get("inplace"):
        raise TypeError("inplace=True")
    for axis, kind in input.layout.items():
        if axis in varying and kind in (R, I, P):
            raise varying_seed(axis, kind, name)
        if kind is P and name not in _MASKING.split():
            raise not_linear(axis, "input", name)
    if name == "multinomial":
        raise TypeError("multinomial of a tensor that has a type")
    return _as(name, input, linear())


def _as(name: str, input: Operand, value: Any) -> Result:
    labels = tuple(range(len(input.shape)))
    result = propagate(name, (Term("input", input, labels),), value, labels)
    if name in _SHAPED.split():  # drawn anew: nothing of the argument's sum is left
        return Result(typed(SpmdLayout(result.tag.layout), factors=result.tag.factors), result.whole)
    return result


def _demand_alike(varying: frozenset[str], op: str, result: Result) -> Result:
    for axis, kind in result.tag.layout.items():
        if axis in varying and kind in (R, I, P):
            raise varying_seed(axis, kind, op)
    return result


def _attended(varying: frozenset[str], *args: Any, **kwargs: Any) -> Result:
    """Attention of which some weights are dropped: a factor that each rank draws for its own heads and queries."""
    given = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
    result = INFER["scaled_dot_product_attention"](
        *given, **{**kwargs, **({} if len(args) > 4 else {"dropout_p": 0.0})}
    )
    return _demand_alike(varying, "attention with dropout", result)


_ATTENTION: Final = RULES[F.scaled_dot_product_attention]


@special(F.scaled_dot_product_attention)
def attention(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """With dropout it draws; else it is judged as any function."""
    if args[4] if len(args) > 4 else kwargs.get("dropout_p"):
        return _judged(check, func, args, kwargs, _attended)
    return _ATTENTION(check, func, args, kwargs)


def _perturbed(
    varying: frozenset[str], logits: Operand, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Result:
    """Softmax of the logits and noise, over a dim that is whole."""
    return _demand_alike(varying, "gumbel_softmax", INFER["softmax"](logits, dim))


@special(F.gumbel_softmax)
def gumbel(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The noise is drawn for each position."""
    return _judged(check, func, args, kwargs, _perturbed)

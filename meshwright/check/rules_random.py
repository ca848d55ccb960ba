"""Random numbers: a generator has a type too, R where every rank seeds it alike and V where it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from meshwright.check.algebra import Result, propagate
from meshwright.check.context import active
from meshwright.check.intercept import place
from meshwright.check.operand import Operand
from meshwright.check.refusal import not_linear, varying_seed
from meshwright.check.rule import Pure, forms, special
from meshwright.check.tag import read, typed
from meshwright.check.term import Term, linear
from meshwright.comm.number import Number
from meshwright.types.kinds import I, P, R
from meshwright.types.layout import SpmdLayout

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

_MASKING: Final = "dropout dropout_ alpha_dropout feature_dropout feature_alpha_dropout dropout1d dropout2d dropout3d"
"""Each position is multiplied by a random one."""
_SHAPED: Final = "rand_like randn_like randint_like bernoulli normal multinomial poisson rrelu"
"""Random values in the shape of an argument, or drawn by it."""


@place(lambda: torch, "manual_seed")
@place(lambda: torch.random, "manual_seed")
def seeded(original: Callable[..., Any], seed: Any) -> Any:
    """The generator that torch takes where none is named is V on the axes on which its seed differs."""
    check = active()
    made = original(int(seed))
    if check is not None:
        check.look()
        origin = seed.origin if isinstance(seed, Number) else None
        axes = (origin.axes or frozenset(check.degree)) if origin is not None else frozenset()
        check.seed_varies(axes)
        _seeds[torch.initial_seed()] = axes
    return made


@place(lambda: torch, "seed")
@place(lambda: torch.random, "seed")
def seeded_by_chance(original: Callable[..., Any]) -> Any:
    """A seed that no two ranks have alike."""
    check = active()
    made = original()
    if check is not None:
        check.look()
        check.seed_varies(frozenset(check.degree))
        _seeds[torch.initial_seed()] = check.varying_seed
    return made


_seeds: Final[dict[int, frozenset[str]]] = {}
"""A seed that the generator was given by a call that was judged -> the axes on which it differs."""


def know_seed() -> None:
    """The seed that the generator has when a check begins is taken to be that of all ranks."""
    _seeds[torch.initial_seed()] = frozenset()


def look_at_seed(check: TypeCheck) -> None:
    """The generator may have been given another seed by its own methods, which nobody sees."""
    check.seed_varies(_seeds.get(torch.initial_seed(), frozenset(check.degree)))


def _drawn(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A random op on a tensor: judged like the product with a random tensor of the generator's type."""
    name = func.__name__.rstrip("_")
    if kwargs.get("generator") is None:
        look_at_seed(check)
    kinds = [kind for x in args if isinstance(x, Tensor) for kind in read(x).layout.values()]
    if all(kind in (R, I, P) for kind in kinds):  # one seed for all ranks is what makes them alike
        generator = kwargs.get("generator")
        check.note_call("seed", (torch.initial_seed() if generator is None else generator.initial_seed(),))
    writes = func.__name__.endswith("_") and not func.__name__.startswith("__")
    rule = Pure(name, partial(_infer, name, check.varying_seed), writes=writes)
    return check.judge(rule, func, args, kwargs)


special(*(function for name in (_MASKING + " " + _SHAPED).split() for function in forms(name)))(_drawn)


def _infer(name: str, varying: frozenset[str], input: Operand, *args: Any, **kwargs: Any) -> Result:
    p = args[0] if args else kwargs.get("p", 0.5)
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

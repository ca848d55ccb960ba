"""The register of rules: which function of torch is judged by what.

A *pure* rule maps operands to results and knows nothing of values; its answers are kept. It serves a function in all
its forms: `torch.mul`, `Tensor.mul`, the operator, and in place `mul_`. A *special* rule runs the call itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

Infer = Callable[..., Any]
"""Arguments as they were given, with an `Operand` for each tensor -> a `Result`, or a tuple of them."""
Handler = Callable[["TypeCheck", Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]
"""(check, function, arguments, keyword arguments) -> what the call returns."""

H = TypeVar("H", bound=Callable[..., Any])

RULES: Final[dict[Any, Handler]] = {}
"""Function as a `TorchFunctionMode` sees it -> what judges it."""
INFER: Final[dict[str, Infer]] = {}
"""Name -> its pure rule."""

_SPACES: Final = (torch, torch.Tensor, F, torch.linalg, torch.special, torch._C._nn)
_OPERATORS: Final = {
    "add": ("__add__", "__radd__"),
    "sub": ("__sub__",),
    "rsub": ("__rsub__",),
    "mul": ("__mul__", "__rmul__"),
    "div": ("__truediv__", "__div__"),
    "rdiv": ("__rdiv__", "__rtruediv__"),
    "matmul": ("__matmul__",),
    "rmatmul": ("__rmatmul__",),
    "pow": ("__pow__",),
    "rpow": ("__rpow__",),
    "remainder": ("__mod__",),
    "floor_divide": ("__floordiv__",),
    "rfloor_divide": ("__rfloordiv__",),
    "neg": ("__neg__",),
    "abs": ("__abs__",),
    "bitwise_not": ("__invert__",),
    "bitwise_and": ("__and__", "__rand__"),
    "bitwise_or": ("__or__", "__ror__"),
    "bitwise_xor": ("__xor__", "__rxor__"),
    "eq": ("__eq__",),
    "ne": ("__ne__",),
    "lt": ("__lt__",),
    "le": ("__le__",),
    "gt": ("__gt__",),
    "ge": ("__ge__",),
}
_IN_PLACE: Final = {
    "add": "__iadd__",
    "sub": "__isub__",
    "mul": "__imul__",
    "div": "__itruediv__",
    "pow": "__ipow__",
    "bitwise_and": "__iand__",
    "bitwise_or": "__ior__",
}


@dataclass(frozen=True)
class Pure:
    """A pure rule for one function. writes: the first argument takes the result."""

    name: str
    infer: Infer
    writes: bool = False

    def __call__(
        self, check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        return check.judge(self, func, args, kwargs)


@dataclass(frozen=True)
class Spelled(Pure):
    """A pure rule of a call whose arguments are spelled otherwise first: `spell` makes others of them."""

    spell: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple


def pure(*names: str) -> Callable[[Infer], Infer]:
    """Register a pure rule for the functions of these names, in all their forms."""

    def register(infer: Infer) -> Infer:
        for name in names:
            INFER[name] = infer
            for form in forms(name):
                RULES[form] = Pure(name, infer)
            for form in in_place_forms(name):
                RULES[form] = Pure(f"{name}_", infer, writes=True)
        return infer

    return register


def special(*functions: Any) -> Callable[[H], H]:
    """Register a special rule for these very functions."""

    def register(handler: H) -> H:
        for function in functions:
            RULES[function] = handler
        return handler

    return register


def getter(name: str) -> Any:
    """The attribute `name` of a tensor, as it is read."""
    return getattr(torch.Tensor, name).__get__


def setter(name: str) -> Any:
    """The attribute `name` of a tensor, as it is assigned."""
    return getattr(torch.Tensor, name).__set__


def forms(name: str) -> Iterator[Any]:
    """The functions of torch with this name, and its operators."""
    yield from _found(name)
    for operator in _OPERATORS.get(name, ()):
        yield from _found(operator)


def in_place_forms(name: str) -> Iterator[Any]:
    """`name_` in all its forms."""
    yield from _found(f"{name}_")
    if name in _IN_PLACE:
        yield from _found(_IN_PLACE[name])


def _found(name: str) -> Iterator[Any]:
    for space in _SPACES:
        function = getattr(space, name, None)
        if callable(function):
            yield function


FUNCTIONAL: Final[dict[str, Handler]] = {}
"""Name of a functional collective of torch -> what judges it."""


def aten_rule(func: Any) -> Handler | None:
    """What judges an op that is called by its name in torch.ops: the rule of the function that it is, if any."""
    schema = getattr(func, "_schema", None)
    qualified = schema.name if schema is not None else getattr(func, "_qualified_op_name", "")
    space, _, name = qualified.partition("::")
    if space in ("_c10d_functional", "_c10d_functional_autograd"):
        return FUNCTIONAL.get(name)
    if space not in ("aten", "meshwright"):
        return None
    if name in INFER:
        return Pure(name, INFER[name])
    if name.endswith("_") and name[:-1] in INFER:
        return Pure(name, INFER[name[:-1]], writes=True)
    return next((RULES[form] for form in forms(name) if form in RULES), None)

"""Ops that work on each position for itself, by formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from meshwright.check.algebra import Result, propagate
from meshwright.check.formula import Formula
from meshwright.check.operand import Operand, keeps_sums
from meshwright.check.own_parts import cut_like
from meshwright.check.refusal import rounded
from meshwright.check.rule import INFER, Pure, getter, pure, special
from meshwright.check.tag import ZERO, read, typed, written
from meshwright.check.term import Labels, Term, opaque
from meshwright.types.kinds import Shard, V

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

UNARY: Final = """
    abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc erfinv exp exp2 expm1 floor frac lgamma log log10 log1p
    log2 logit nan_to_num reciprocal round rsqrt sgn sigmoid sign sin sinc sinh sqrt square tan tanh trunc digamma
    hardsigmoid hardswish logsigmoid relu6 softsign tanhshrink angle i0 absolute arccos arccosh arcsin arcsinh arctan
    arctanh fix expit entr erfcx i0e i1 i1e ndtr log_ndtr
"""
"""Not linear in their one argument."""

FORMULAS: Final = {
    "add": "input, other, *, alpha=1: input + other * alpha",
    "sub": "input, other, *, alpha=1: input + other * alpha",
    "rsub": "input, other, *, alpha=1: other + input * alpha",
    "mul": "input, other: input * other",
    "rdiv": "input, other: other * ~input",
    "addcmul": "input, tensor1, tensor2, value=1: input + tensor1 * tensor2 * value",
    "addcdiv": "input, tensor1, tensor2, value=1: input + tensor1 * ~tensor2 * value",
    "lerp": "input, end, weight: input + input * weight + end * weight",
    "neg": "input: input",
    "negative": "input: input",
    "positive": "input: input",
    "clone": "input, *, memory_format=None: input",
    "contiguous": "input, memory_format=None: input",
    "conj": "input: input",
    "resolve_conj": "input: input",
    "resolve_neg": "input: input",
    "conj_physical": "input: input",
    "real": "input: input",
    "imag": "input: input",
    "complex": "real, imag: real + imag",
    "polar": "abs, angle: ~abs * ~angle",
    "deg2rad": "input: input",
    "rad2deg": "input: input",
    "subtract": "input, other, *, alpha=1: input + other * alpha",
    "multiply": "input, other: input * other",
    "ldexp": "input, other: input * ~other",
    "detach": "input: input",
    "where": "condition, input, other: ~condition * input + ~condition * other",
    "masked_fill": "input, mask, value: input * ~mask + value * ~mask",
    "clamp": "input, min=None, max=None: ~input * ~min * ~max",
    "clip": "input, min=None, max=None: ~input * ~min * ~max",
    "clamp_min": "input, min: ~input * ~min",
    "clamp_max": "input, max: ~input * ~max",
    "pow": "input, exponent: ~input * ~exponent",
    "rpow": "input, other: ~input * ~other",
    "maximum": "input, other: ~input * ~other",
    "minimum": "input, other: ~input * ~other",
    "fmax": "input, other: ~input * ~other",
    "fmin": "input, other: ~input * ~other",
    "float_power": "input, exponent: ~input * ~exponent",
    "atan2": "input, other: ~input * ~other",
    "arctan2": "input, other: ~input * ~other",
    "hypot": "input, other: ~input * ~other",
    "fmod": "input, other: ~input * ~other",
    "remainder": "input, other: ~input * ~other",
    "logaddexp": "input, other: ~input * ~other",
    "logaddexp2": "input, other: ~input * ~other",
    "xlogy": "input, other: ~input * ~other",
    "xlog1py": "input, other: ~input * ~other",
    "relu": "input, inplace=False: ~input",
    "silu": "input, inplace=False: ~input",
    "mish": "input, inplace=False: ~input",
    "gelu": "input, *, approximate='none': ~input",
    "elu": "input, alpha=1.0, inplace=False: ~input",
    "celu": "input, alpha=1.0, inplace=False: ~input",
    "selu": "input, inplace=False: ~input",
    "leaky_relu": "input, negative_slope=0.01, inplace=False: ~input",
    "softplus": "input, beta=1, threshold=20: ~input",
    "hardtanh": "input, min_val=-1.0, max_val=1.0, inplace=False: ~input",
    "threshold": "input, threshold, value, inplace=False: ~input",
    "hardshrink": "input, lambd=0.5: ~input",
    "softshrink": "input, lambd=0.5: ~input",
    **dict.fromkeys(UNARY.split(), "input: ~input"),
}

COMPARED: Final = """
    eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor floor_divide rfloor_divide
    not_equal less less_equal greater greater_equal bitwise_right_shift gcd lcm heaviside
"""
ASKED: Final = "logical_not bitwise_not isnan isinf isfinite signbit isposinf isneginf isreal"

SILENT: Final = {
    **dict.fromkeys(COMPARED.split(), "input, other: ~input * ~other"),
    **dict.fromkeys(ASKED.split(), "input: ~input"),
    "bitwise_left_shift": "input, other: input * ~other",
    "isclose": "input, other, rtol=1e-05, atol=1e-08, equal_nan=False: ~input * ~other",
}
"""Formulas of ops that pass no gradient on: there R and I are one."""


def pointwise(name: str, text: str, flows: bool = True) -> None:
    """Register the formula `text` for torch's functions of this name."""
    formula = Formula.read(text)

    def infer(*args: Any, **kwargs: Any) -> Result:
        if kwargs.pop("inplace", False):
            raise TypeError("inplace=True")
        return formula.infer(name, args, kwargs, flows=flows)

    pure(name)(infer)


for _name, _text in FORMULAS.items():
    pointwise(_name, _text)
for _name, _text in SILENT.items():
    pointwise(_name, _text, flows=False)


def without_gradient(argument: Any) -> Any:
    """An argument through which the op passes no gradient: there R and I are one."""
    return replace(argument, flows=False) if isinstance(argument, Operand) else argument


_QUOTIENT: Final = Formula.read("input, other: input * ~other")
_ROUNDED: Final = Formula.read("input, other: ~input * ~other")


@pure("div", "divide", "true_divide")
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Result:
    """A quotient is linear in what is divided, unless it is rounded."""
    formula = _QUOTIENT if rounding_mode is None else _ROUNDED
    op = "div" if rounding_mode is None else f"div(rounding_mode={rounding_mode!r})"
    return formula.infer(op, (input, other), {})


special(getter("imag"))(Pure("imag", INFER["imag"]))


@pure("prelu")
def prelu(input: Operand, weight: Operand) -> Result:
    """One slope for all, or one for each position of the second dim."""
    labels = tuple(range(len(input.shape)))
    slopes: Labels = (1,) if weight.whole != (1,) else ("one",)
    return propagate("prelu", (Term("input", input, labels), Term("weight", weight, slopes)), opaque(2), labels)


_SIGNED: Final = Formula.read("input, other: ~input * ~other")


@pure("copysign")
def copysign(input: Operand, other: Any) -> Result:
    """The sign of `other` passes no gradient on."""
    return _SIGNED.infer("copysign", (input, without_gradient(other)), {})


_OVERWRITTEN: Final = Formula.read("input, src: input + src")
_NEW: Final = Formula.read("input, src: src")


def _own(written: Result, buffer: Operand) -> Result:
    """What is written into a buffer as long as a rank made it: a rank's own, unless it is cut."""
    layout = written.tag.layout
    kinds = {axis: V for axis in buffer.layout.varying if not isinstance(layout.get(axis), Shard)}
    return Result(typed(layout.replace(**kinds), written.tag.counted), None, anew=True)


@pure("copy", "fill")
def overwritten(input: Operand, src: Any, non_blocking: bool = False) -> Result:
    """What replaces the values of a tensor has the type of what it replaces, or one that could be added to it.

    A gradient takes the type of what is written over all of it.
    """
    own = isinstance(src, Operand) and src.known and src.shape == input.shape
    if own and input.tag.owner is not None:  # a gradient that was reduced elsewhere
        written = cut_like(_NEW.infer("a write", (input, src), {}), input).tag
        return Result(replace(written, owner=input.tag.owner), None, anew=True)
    if input.tag.owner is not None and type(src) in (int, float) and src == 0:
        return zeroed(input)
    if input.tag.fresh is not None and input.layout.varying:
        return _own(_NEW.infer("a write", (input, src), {}), input)
    if input.known:
        return _OVERWRITTEN.infer("a write", (input, src), {})
    return Result(_NEW.infer("a write", (input, src), {}).tag, None, anew=True)


@pure("zero")
def zeroed(input: Operand) -> Result:
    """Zeros are of any type, and so of the one that the tensor has; a gradient begins anew."""
    if input.tag.owner is not None:
        return Result(ZERO, None, anew=True)
    return Result(ZERO if input.tag.fresh is not None else input.tag, input.whole)


_ZERO: Final = Pure("zero_", zeroed, writes=True)


@special(torch.Tensor.zero_)
def cleared(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Also of memory whose parts are of types that do not go together: zeros are of each of them."""
    if read(args[0]).mixed:
        result = func(*args, **kwargs)
        written(result)
        return result
    return check.judge(_ZERO, func, args, kwargs)


_CAST: Final = Formula.read("input: input")


def cast(op: str, input: Operand, dtype: torch.dtype) -> Result:
    """To another dtype: a sum keeps its type only where its parts are not rounded."""
    for axis in input.layout.partial:
        if not keeps_sums(dtype, input.dtype):
            raise rounded(axis, "input", op, input.dtype, dtype)
    return _CAST.infer(op, (input,), {})


@pure("to", "type", "type_as", "cpu", "cuda")
def to(input: Operand, *args: Any, **kwargs: Any) -> Result:
    """Any form of `.to`: the dtype is looked for among the arguments."""
    dtype = input.dtype
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, Operand):
            dtype = value.dtype
    return cast(f"a cast to {dtype}", input, dtype)


def _to_dtype(dtype: torch.dtype, input: Operand) -> Result:
    """A cast: parts of a sum may not be rounded."""
    return cast(f"a cast to {dtype}", input, dtype)


for _name, _dtype in {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "cfloat": torch.complex64,
    "cdouble": torch.complex128,
    "byte": torch.uint8,
    "char": torch.int8,
    "short": torch.int16,
    "int": torch.int32,
    "long": torch.int64,
    "bool": torch.bool,
}.items():
    pure(_name)(partial(_to_dtype, _dtype))

"""Losses: one number for each position, then none, a sum, or a mean of them.

A sum over sharded positions is P. A mean divides by the number of positions on this rank, and so wants them whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from meshwright.check.algebra import Result, propagate
from meshwright.check.formula import aligned
from meshwright.check.operand import Operand
from meshwright.check.rule import pure
from meshwright.check.term import Factor, Label, Labels, Term

_SUM: Final = 'reduction="sum", which is P over the axis, divided once by the number of positions over all ranks'


def loss(
    op: str,
    terms: Sequence[tuple[str, Any, Labels, bool]],
    places: Labels,
    reduction: str,
    *,
    whole: Iterable[Label] = (),
    counted: Iterable[Label] | None = None,
) -> Result:
    """terms: name, argument, labels and whether the loss is linear in it; an argument that is None is left out.

    places: what a loss is given for; whole: dims that it needs whole for one; counted: those that a mean divides by.
    """
    given = [each for each in terms if each[1] is not None]
    value = [Factor(n, linear) for n, (_, _, _, linear) in enumerate(given)]
    along: dict[Label, str] = dict.fromkeys(whole, "")
    if reduction not in ("none", "sum"):
        along |= dict.fromkeys(places if counted is None else counted, _SUM)
    parts = [Term(name, argument, labels) for name, argument, labels, _ in given]
    return propagate(op, parts, (value,), places if reduction == "none" else (), along=along)


def modern(size_average: Any, reduce: Any) -> None:
    """Only `reduction` says what becomes of the losses."""
    if size_average is not None or reduce is not None:
        raise TypeError("size_average or reduce")


@pure("cross_entropy")
def cross_entropy(
    input: Operand,
    target: Operand,
    weight: Operand | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Result:
    """input[N, classes, ...], target[N, ...] or probabilities like input: classes are whole."""
    modern(size_average, reduce)
    labels, places = _classes(input)
    chances = len(target.shape) == len(input.shape)
    terms = (
        ("input", input, labels, False),
        ("target", target, labels if chances else places, chances and not label_smoothing),
        ("weight", weight, ("classes",), chances or reduction != "mean"),
    )
    return loss("cross_entropy", terms, places, reduction, whole=("classes",))


@pure("nll_loss")
def nll_loss(
    input: Operand,
    target: Operand,
    weight: Operand | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Result:
    """input[N, classes, ...], target[N, ...]: classes are whole; linear in the input."""
    modern(size_average, reduce)
    labels, places = _classes(input)
    terms = (
        ("input", input, labels, True),
        ("target", target, places, False),
        ("weight", weight, ("classes",), reduction != "mean"),
    )
    return loss("nll_loss", terms, places, reduction, whole=("classes",))


def _classes(input: Operand) -> tuple[Labels, Labels]:
    """Labels of the input, and those of its positions."""
    count = len(input.shape)
    labels = tuple("classes" if dim == min(1, count - 1) else dim for dim in range(count))
    return labels, tuple(label for label in labels if label != "classes")


def elementwise(op: str, reduction: str, *terms: tuple[str, Any, bool]) -> Result:
    """Position by position; what is named first has all dims."""
    places = tuple(range(len(terms[0][1].shape)))
    aligned_terms = [(name, x, () if x is None else aligned(x, len(places)), linear) for name, x, linear in terms]
    return loss(op, aligned_terms, places, reduction)


@pure("mse_loss", "l1_loss")
def mse_loss(
    input: Operand,
    target: Operand,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: Operand | None = None,
) -> Result:
    """Position by position."""
    modern(size_average, reduce)
    if weight is not None and reduction == "mean":
        raise TypeError('weight with reduction="mean"')
    return elementwise(
        "a loss", reduction, ("input", input, False), ("target", target, False), ("weight", weight, True)
    )


@pure("smooth_l1_loss", "soft_margin_loss")
def smooth_l1_loss(
    input: Operand,
    target: Operand,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Result:
    """Position by position."""
    modern(size_average, reduce)
    return elementwise("a loss", reduction, ("input", input, False), ("target", target, False))


@pure("huber_loss")
def huber_loss(
    input: Operand, target: Operand, reduction: str = "mean", delta: float = 1.0, weight: Operand | None = None
) -> Result:
    """Position by position."""
    if weight is not None and reduction == "mean":
        raise TypeError('weight with reduction="mean"')
    return elementwise(
        "huber_loss", reduction, ("input", input, False), ("target", target, False), ("weight", weight, True)
    )


@pure("binary_cross_entropy")
def binary_cross_entropy(
    input: Operand,
    target: Operand,
    weight: Operand | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Result:
    """Position by position."""
    modern(size_average, reduce)
    terms = (("input", input, False), ("target", target, False), ("weight", weight, True))
    return elementwise("binary_cross_entropy", reduction, *terms)


@pure("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    input: Operand,
    target: Operand,
    weight: Operand | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    pos_weight: Operand | None = None,
) -> Result:
    """Position by position."""
    modern(size_average, reduce)
    terms = (("input", input, False), ("target", target, False), ("weight", weight, True))
    return elementwise("binary_cross_entropy", reduction, *terms, ("pos_weight", pos_weight, False))


@pure("kl_div")
def kl_div(
    input: Operand,
    target: Operand,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Result:
    """Position by position; `batchmean` divides by the length of the first dim alone."""
    modern(size_average, reduce)
    places = tuple(range(len(input.shape)))
    terms = (("input", input, places, False), ("target", target, aligned(target, len(places)), False))
    return loss("kl_div", terms, places, reduction, counted=places[:1] if reduction == "batchmean" else None)

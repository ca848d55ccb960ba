"""Losses of pairs and triplets, and likelihoods."""

from __future__ import annotations

from typing import Any

from meshwright.check.algebra import Result
from meshwright.check.operand import Operand
from meshwright.check.rule import pure
from meshwright.check.rules_loss import elementwise, loss, modern


@pure("gaussian_nll_loss")
def gaussian_nll_loss(
    input: Operand, target: Operand, var: Operand, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Result:
    """Position by position."""
    if not isinstance(var, Operand) or len(var.shape) != len(input.shape):
        raise TypeError("var of another shape")
    terms = (("input", input, False), ("target", target, False), ("var", var, False))
    return elementwise("gaussian_nll_loss", reduction, *terms)


@pure("poisson_nll_loss")
def poisson_nll_loss(
    input: Operand,
    target: Operand,
    log_input: bool = True,
    full: bool = False,
    size_average: Any = None,
    eps: float = 1e-8,
    reduce: Any = None,
    reduction: str = "mean",
) -> Result:
    """Position by position."""
    modern(size_average, reduce)
    return elementwise("poisson_nll_loss", reduction, ("input", input, False), ("target", target, False))


@pure("hinge_embedding_loss")
def hinge_embedding_loss(
    input: Operand,
    target: Operand,
    margin: float = 1.0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Result:
    """Position by position."""
    modern(size_average, reduce)
    return elementwise("hinge_embedding_loss", reduction, ("input", input, False), ("target", target, False))


@pure("margin_ranking_loss")
def margin_ranking_loss(
    input1: Operand,
    input2: Operand,
    target: Operand,
    margin: float = 0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Result:
    """Position by position."""
    modern(size_average, reduce)
    terms = (("input1", input1, False), ("input2", input2, False), ("target", target, False))
    return elementwise("margin_ranking_loss", reduction, *terms)


@pure("triplet_margin_loss")
def triplet_margin_loss(
    anchor: Operand,
    positive: Operand,
    negative: Operand,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Result:
    """By distances over the last dim, which is whole."""
    modern(size_average, reduce)
    labels = (*range(len(anchor.shape) - 1), "features")
    named = (("anchor", anchor), ("positive", positive), ("negative", negative))
    terms = [(name, given, labels, False) for name, given in named]
    return loss("triplet_margin_loss", terms, labels[:-1], reduction, whole=("features",))


@pure("cosine_embedding_loss")
def cosine_embedding_loss(
    input1: Operand,
    input2: Operand,
    target: Operand,
    margin: float = 0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Result:
    """By angles over the last dim, which is whole."""
    modern(size_average, reduce)
    labels = (*range(len(input1.shape) - 1), "features")
    terms = [(name, given, labels, False) for name, given in (("input1", input1), ("input2", input2))]
    targets = ("target", target, labels[:-1], False)
    return loss("cosine_embedding_loss", (*terms, targets), labels[:-1], reduction, whole=("features",))

"""How an op is made of its arguments: a sum of products of labelled terms."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from meshwright.check.operand import Operand

Label = Hashable
Labels = tuple[Label, ...]


class Term(NamedTuple):
    """An argument of an op: its name, what was given, and the labels of its dims; a number has none."""

    name: str
    given: Operand | complex
    labels: Labels = ()


class Factor(NamedTuple):
    """A term in a product: its number in the list of terms, and whether the product is linear in it."""

    term: int
    linear: bool = True


Sum = Sequence[Sequence[Factor]]
"""A sum of products."""


def linear(term: int = 0) -> Sum:
    """The op is linear in one term."""
    return ((Factor(term),),)


def opaque(count: int = 1) -> Sum:
    """The op is linear in none of its terms."""
    return (tuple(Factor(term, linear=False) for term in range(count)),)

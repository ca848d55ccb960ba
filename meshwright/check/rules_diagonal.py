"""Diagonals: of two dims, which are whole, or as two new ones."""

from __future__ import annotations

import math

import torch

from meshwright.check.algebra import Result
from meshwright.check.operand import Operand
from meshwright.check.rule import INFER, RULES, Pure, pure
from meshwright.check.rules_dims import relabelled
from meshwright.check.rules_view import from_front
from meshwright.check.term import Labels


@pure("diagonal")
def diagonal(input: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Result:
    """The diagonal of two dims, which are whole, as a new last dim; linear."""
    count = len(input.shape)
    a, b = from_front(dim1, count), from_front(dim2, count)
    labels = tuple(range(count))
    length = _diagonal_length(input.whole[a], input.whole[b], offset)
    out = (*(dim for dim in labels if dim not in (a, b)), "diagonal")
    return relabelled("diagonal", input, labels, out, (a, b), {"diagonal": length})


def matrix_diagonal(A: Operand, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Result:
    """As `diagonal`, by default of the last two dims."""
    return diagonal(A, offset, dim1, dim2)


INFER["linalg_diagonal"] = matrix_diagonal
RULES[torch.linalg.diagonal] = Pure("linalg_diagonal", matrix_diagonal)


def _diagonal_length(rows: int, columns: int, offset: int) -> int:
    return max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))


@pure("diag")
def diag(input: Operand, diagonal: int = 0) -> Result:
    """The diagonal of a matrix, or a matrix with a diagonal; linear."""
    if len(input.shape) == 1:
        return diag_embed(input, diagonal)
    length = _diagonal_length(input.whole[0], input.whole[1], diagonal)
    return relabelled("diag", input, (0, 1), ("diagonal",), (0, 1), {"diagonal": length})


@pure("diag_embed")
def diag_embed(input: Operand, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Result:
    """The last dim, which is whole, as the diagonal of two new ones; linear."""
    count = len(input.shape)
    labels = tuple(range(count))
    length = input.whole[-1] + abs(offset)
    a, b = from_front(dim1, count + 1), from_front(dim2, count + 1)
    rest = iter(labels[:-1])
    out: Labels = tuple("rows" if n == a else "columns" if n == b else next(rest) for n in range(count + 1))
    return relabelled("diag_embed", input, labels, out, labels[-1:], {"rows": length, "columns": length})


@pure("diagflat")
def diagflat(input: Operand, offset: int = 0) -> Result:
    """All positions, which are whole, as a diagonal; linear."""
    labels = tuple(range(len(input.shape)))
    length = math.prod(input.whole) + abs(offset)
    return relabelled("diagflat", input, labels, ("rows", "columns"), labels, {"rows": length, "columns": length})

"""Linear algebra on matrices that are whole; a batch of them may be sharded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.rule import pure
from meshwright.check.term import Factor, Label, Labels, Term, opaque

_SHAPES: Final = {
    "matrix": ("rows", "columns"),
    "square": ("rows", "rows"),
    "wide": ("least", "columns"),
    "tall": ("rows", "least"),
    "values": ("least",),
    "number": (),
}
"""The last dims of a result, by the dims of the matrices."""

RESULTS: Final[dict[str, tuple[str, ...]]] = {
    "inv": ("matrix",),
    "inverse": ("matrix",),
    "matrix_exp": ("matrix",),
    "matrix_power": ("matrix",),
    "cholesky": ("matrix",),
    "det": ("number",),
    "logdet": ("number",),
    "slogdet": ("number", "number"),
    "svdvals": ("values",),
    "eigvalsh": ("values",),
    "eigh": ("values", "matrix"),
    "qr": ("tall", "wide"),
}
"""Op -> what it makes of each matrix; none is linear."""


def _registered(name: str, shapes: Sequence[str]) -> None:
    def infer(A: Operand, *args: Any, **kwargs: Any) -> Any:
        """Of matrices that are whole."""
        results = tuple(_of_matrices(name, A, _SHAPES[shape]) for shape in shapes)
        return results if len(shapes) > 1 else results[0]

    pure(name)(infer)


for _name, _shapes in RESULTS.items():
    _registered(_name, _shapes)


def _of_matrices(op: str, A: Operand, last: Labels) -> Result:
    batch = tuple(range(len(A.shape) - 2))
    rows, columns = A.whole[-2:]
    lengths: dict[Label, int] = {"least": min(rows, columns)}
    term = Term("A", A, (*batch, "rows", "columns"))
    return propagate(op, (term,), opaque(), (*batch, *last), along={"rows": "", "columns": ""}, lengths=lengths)


@pure("svd")
def svd(A: Operand, full_matrices: bool = True, *, driver: Any = None) -> tuple[Result, ...]:
    """U, S and Vh of matrices that are whole."""
    if full_matrices:
        raise TypeError("full_matrices=True, whose gradient is not defined")
    return tuple(_of_matrices("svd", A, _SHAPES[shape]) for shape in ("tall", "values", "wide"))


@pure("pinv", "pinverse")
def pinv(A: Operand, *args: Any, **kwargs: Any) -> Result:
    """Of matrices that are whole."""
    return _of_matrices("pinv", A, ("columns", "rows"))


@pure("solve")
def solve(A: Operand, B: Operand, *, left: bool = True) -> Result:
    """X of A @ X = B: matrices are whole, right-hand sides may be sharded; linear in B."""
    if not left or len(B.shape) != len(A.shape):
        raise TypeError("left=False, or vectors")
    return _solved("solve", A, B)


@pure("solve_triangular")
def solve_triangular(A: Operand, B: Operand, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Result:
    """X of A @ X = B: matrices are whole, right-hand sides may be sharded; linear in B."""
    if not left:
        raise TypeError("left=False")
    return _solved("solve_triangular", A, B)


@pure("cholesky_solve")
def cholesky_solve(B: Operand, L: Operand, upper: bool = False) -> Result:
    """X of L @ L.mT @ X = B: matrices are whole, right-hand sides may be sharded; linear in B."""
    return _solved("cholesky_solve", L, B)


def _solved(op: str, A: Operand, B: Operand) -> Result:
    batch = tuple(range(len(A.shape) - 2))
    terms = (Term("A", A, (*batch, "rows", "columns")), Term("B", B, (*batch, "rows", "sides")))
    value = ((Factor(0, linear=False), Factor(1)),)
    return propagate(op, terms, value, (*batch, "rows", "sides"), along={"rows": "", "columns": ""})

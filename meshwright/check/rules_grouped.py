"""Products of groups of rows, each with its own matrix: what experts compute.

Where a group ends is said by row, and so rows are whole: a rank that has some of all rows has no group of them. In a
region each rank has rows, and ends, of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.rule import pure
from meshwright.check.rules_spread import demand_counts
from meshwright.check.term import Factor, Label, Labels, Term

_OWN: Final = "a region, spmd.local(), in which each rank has rows and ends of its own"


@pure("grouped_mm", "_grouped_mm")
def grouped_mm(
    mat_a: Operand, mat_b: Operand, *, offs: Operand | None = None, bias: Any = None, out_dtype: Any = None
) -> Result:
    """Matrices of several groups, end to end in one dim, which `offs`[groups] cuts and which is whole.

    [rows, k] @ [groups, k, n]; [groups, m, k] @ [k, columns]; [m, rows] @ [rows, n] -> [groups, m, n].
    """
    if bias is not None:
        raise TypeError("bias")
    left, right, out = _GROUPED.get((len(mat_a.shape), len(mat_b.shape)), ((), (), ()))
    return _product("grouped_mm", [Term("mat_a", mat_a, left), Term("mat_b", mat_b, right)], ("offs", offs), out)


_GROUPED: Final[dict[tuple[int, int], tuple[Labels, Labels, Labels]]] = {
    (2, 3): (("rows", "k"), ("groups", "k", "n"), ("rows", "n")),
    (3, 2): (("groups", "m", "k"), ("k", "columns"), ("m", "columns")),
    (2, 2): (("m", "rows"), ("rows", "n"), ("groups", "m", "n")),
    (3, 3): (("groups", "m", "k"), ("groups", "k", "n"), ("groups", "m", "n")),
}


@pure("grouped_linear")
def grouped_linear(x: Operand, weight: Operand, offsets: Operand, filled: bool = False) -> Result:
    """[rows, in] with [groups, out, in] -> [rows, out], as `meshwright.models.grouped` has it."""
    terms = [Term("x", x, ("rows", "in")), Term("weight", weight, ("groups", "out", "in"))]
    return _product("grouped_linear", terms, ("offsets", offsets), ("rows", "out"))


@pure("grouped_linear_weights")
def grouped_linear_weights(grad: Operand, x: Operand, offsets: Operand) -> Result:
    """[rows, out] with [rows, in] -> [groups, out, in], the gradient of the weights."""
    terms = [Term("grad", grad, ("rows", "out")), Term("x", x, ("rows", "in"))]
    return _product("grouped_linear_weights", terms, ("offsets", offsets), ("groups", "out", "in"))


def _product(op: str, terms: Sequence[Term], ends: tuple[str, Operand | None], out: Labels) -> Result:
    value = [Factor(0), Factor(1)]
    name, given = ends
    if given is None:
        return propagate(op, terms, (value,), out)
    demand_counts(op, name, given)
    along: dict[Label, str] = dict.fromkeys(("groups", "rows", "columns"), _OWN)
    every = [*terms, Term(name, given, ("groups",))]
    return propagate(op, every, ([*value, Factor(2, linear=False)],), out, along=along)

"""A rule serves a function in all its forms: torch.f, Tensor.f, operators, in place."""

from __future__ import annotations

import operator

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.check import layout_of
from meshwright.check.factors import Factor
from meshwright.check.regroup import regrouped, resolve
from tests.check.judged import judged, on

TWO = on("tp", 2)
S = spmd.S

FORMS = {
    "torch.add": lambda x, y: torch.add(x, y),
    "keywords": lambda x, y: torch.add(input=x, other=y, alpha=2),
    "Tensor.add": lambda x, y: x.add(y),
    "+": operator.add,
    "number +": lambda x, y: 2 + x,
    "-": operator.sub,
    "number -": lambda x, y: 2 - x,
    "*": operator.mul,
    "number *": lambda x, y: 2 * x,
    "/": operator.truediv,
    "number /": lambda x, y: 2 / x,
    "//": lambda x, y: x // 2,
    "%": lambda x, y: x % 2,
    "**": lambda x, y: x**2,
    "number **": lambda x, y: 2**x,
    "-x": lambda x, y: -x,
    "abs": lambda x, y: abs(x),
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "&": lambda x, y: (x > 1) & (y > 1),
    "|": lambda x, y: (x > 1) | (y > 1),
    "^": lambda x, y: (x > 1) ^ (y > 1),
    "~": lambda x, y: ~(x > 1),
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "**=": lambda x, y: operator.ipow(x, 2),
    "add_": lambda x, y: x.add_(y),
    "foreach": lambda x, y: torch._foreach_add([x], [y])[0],
    "foreach in place": lambda x, y: (torch._foreach_add_([x], [y]), x)[1],
    "out of a list": lambda x, y: torch.stack([x, y]).unbind()[0],
    "index and write": lambda x, y: x.__setitem__((slice(None), 0), 1.0) or x,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_type_is_followed(form):
    def program(rank):
        x, y = (spmd.assert_type(torch.full((2, 2), 2.0), {"tp": S(0)}) for _ in range(2))
        return dict(layout_of(FORMS[form](x, y)))

    assert judged(program, TWO) == [{"tp": S(0)}] * 2


def f(length, axis=""):
    """A factor, whole on every rank or cut over the two ranks of an axis."""
    return Factor(length, ((axis, S(0)),), length // 2) if axis else Factor(length, (), length)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([[f(4)], [f(6)]], (4, 2, 3), [[f(4)], [f(2)], [f(3)]]),
        ([[f(4)], [f(2)], [f(3)]], (4, 6), [[f(4)], [f(2), f(3)]]),
        ([[f(2)], [f(3)]], (3, 2), [[f(3)], [f(2)]]),
        ([[f(4)]], (4, 1), [[f(4)], [f(1)]]),
        ([[f(1)], [f(4)]], (4,), [[f(4)]]),
        ([], (1,), [[f(1)]]),
        ([[f(4, "dp")], [f(8, "tp")]], (8,), [[f(4, "dp"), f(8, "tp")]]),
        ([[f(4, "dp"), f(8, "tp")]], (2, 4), [[f(4, "dp")], [f(8, "tp")]]),
        ([[f(2, "dp")], [f(8)]], (8,), [[f(2, "dp"), f(8)]]),
        ([[f(2, "dp"), f(8)]], (1, 8), [[f(2, "dp")], [f(8)]]),
        ([[f(6)], [f(8, "tp")]], (6, 2, 2), [[f(6)], [f(4, "tp")], [f(2)]]),
        ([[f(6)], [f(8, "tp")]], (6, 1, 4), [[f(6)], [f(2, "tp")], [f(4)]]),
        ([[f(8, "tp")]], (1, 4), [[f(1)], [f(8, "tp")]]),
        ([[f(4, "dp")], [f(3)]], (3, 2), [[f(6, "dp")], [f(2)]]),
        ([[f(4)], [f(2, "tp")], [f(6)]], (4, 6), [[f(4)], [f(2, "tp"), f(6)]]),
    ],
)
def test_dims_of_a_view_are_products_of_factors(before, after, expected):
    assert regrouped(before, after, after) == expected


@pytest.mark.parametrize(
    ("sizes", "total", "expected"),
    [((2, -1), 6, (2, 3)), ((2, 3), 6, (2, 3)), ((2, 4), 6, None), ((4, -1), 6, None), ((0, -1), 0, None)],
)
def test_the_size_that_is_left_open(sizes, total, expected):
    assert resolve(sizes, total) == expected

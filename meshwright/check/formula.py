"""Formulas: one line that says how an op is made of its arguments.

    "input, other, *, alpha=1: input + other * alpha"
    "input, min=None, max=None: ~input * ~min * ~max"

Left of the colon stand the arguments as torch names them; right of it the value as a sum of products, as far as
linearity goes. `~` marks an argument in which the op is not linear; what does not occur is static.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.term import Factor, Label, Term


@dataclass(frozen=True)
class Formula:
    """bind: the call's arguments -> the values of `names`; products: the sum, by name."""

    bind: Callable[..., tuple[Any, ...]]
    names: tuple[str, ...]
    products: tuple[tuple[tuple[str, bool], ...], ...]

    @staticmethod
    def read(text: str) -> Formula:
        """The formula that `text` writes down."""
        tree = ast.parse(f"lambda {text}", mode="eval").body
        assert isinstance(tree, ast.Lambda)
        arguments = tree.args
        names = tuple(argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
        bind = eval(f"lambda {ast.unparse(arguments)}: ({', '.join(names)},)")
        return Formula(bind, names, tuple(_products(tree.body)))

    def infer(self, op: str, args: Sequence[Any], kwargs: dict[str, Any], *, flows: bool = True) -> Result:
        """The result of a pointwise op: dims are aligned from the last one on.

        Errors: `TypeError` where the arguments are others; `Refused` where the types do not fit.
        """
        values = dict(zip(self.names, self.bind(*args, **kwargs), strict=True))
        used = [name for name in self.names if any(name == other for product in self.products for other, _ in product)]
        given = {name: values[name] for name in used if values[name] is not None}
        for name, value in given.items():
            if not isinstance(value, (Operand, bool, int, float, complex)):
                raise TypeError(f"{name} is a {type(value).__name__}")
        dims = max((len(value.shape) for value in given.values() if isinstance(value, Operand)), default=0)
        terms = [Term(name, value, aligned(value, dims)) for name, value in given.items()]
        place = {name: number for number, name in enumerate(given)}
        products = [
            [Factor(place[name], linear) for name, linear in product if name in place] for product in self.products
        ]
        return propagate(op, terms, [product for product in products if product], tuple(range(dims)), flows=flows)


def aligned(value: Operand | complex, dims: int) -> tuple[Label, ...]:
    """Labels 0 to `dims` - 1 for the last dims of `value`."""
    return tuple(range(dims - len(value.shape), dims)) if isinstance(value, Operand) else ()


def _products(node: ast.expr) -> list[tuple[tuple[str, bool], ...]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _products(node.left) + _products(node.right)
    return [tuple(_factors(node))]


def _factors(node: ast.expr) -> list[tuple[str, bool]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _factors(node.left) + _factors(node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return [(name, False) for name, _ in _factors(node.operand)]
    assert isinstance(node, ast.Name), ast.unparse(node)
    return [(node.id, True)]

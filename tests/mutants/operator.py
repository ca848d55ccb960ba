"""Kinds of faults: each finds all places of a program where it can be planted."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Final

from tests.mutants.program import Program
from tests.mutants.rewrite import Edit, blocks, edit, is_step, steps

Operator = Callable[[Program], Iterator[Edit]]

OPERATORS: Final[dict[str, Operator]] = {}
"""Name -> kind of fault."""
NO_MEANING: Final[set[str]] = set()
"""Kinds that leave no right program of anything else: a backward that is not that of its forward."""


def operator(name: str) -> Callable[[Operator], Operator]:
    """Add a kind of fault."""

    def add(find: Operator) -> Operator:
        OPERATORS[name] = find
        return find

    return add


def is_of_gradients(node: ast.stmt) -> bool:
    """Whether a statement reduces a gradient."""
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(".grad") and is_step(node.value)


def of_gradients(program: Program) -> set[ast.AST]:
    """The steps that reduce gradients."""
    return {node.value for body in blocks(program.tree) for node in body if is_of_gradients(node)}


def of_values(program: Program) -> Iterator[ast.Call]:
    """All other steps."""
    others = of_gradients(program)
    return (step for step in steps(program.tree) if step not in others)


def on_others(program: Program, call: ast.Call, place: int) -> Iterator[Edit]:
    """An axis that is an argument, as each other axis of the program."""
    mine = ast.literal_eval(call.args[place])
    for axis in program.axes:
        if axis != mine:
            yield edit(call.args[place], ast.Constant(axis), mine, axis)

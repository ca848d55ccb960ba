"""Source trees with some nodes replaced, and what operators ask of a node."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Node = ast.AST
New = Node | list[Node]

STEPS: Final = frozenset(
    f"spmd.{name}"
    for name in (
        *("redistribute", "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "convert", "reinterpret"),
        *("shard", "unshard", "invariant_to_replicate"),
    )
)
"""Calls that change the type of their first argument on the axis that is their second."""


@dataclass(frozen=True)
class Edit:
    """What to put in the place of some nodes. axes: those that the fault is about; empty where it is about none.

    line: of the right program's source.
    """

    new: Mapping[Node, New]
    axes: tuple[str, ...]
    line: int


def edit(old: Any, new: New, *axes: str) -> Edit:
    """One node replaced."""
    return Edit({old: new}, axes, old.lineno)


def rewritten(tree: ast.FunctionDef, new: Mapping[Node, New]) -> ast.FunctionDef:
    """The tree with nodes replaced; a statement by any number of statements."""
    made = replaced(tree, new)
    assert isinstance(made, ast.FunctionDef)
    return ast.fix_missing_locations(made)


def replaced(node: Any, new: Mapping[Node, New]) -> Any:
    """Any part of a tree with nodes replaced."""
    if isinstance(node, list):
        found: list[Any] = []
        for each in node:
            one = replaced(each, new)
            found += one if isinstance(one, list) else [one]
        return found
    if not isinstance(node, ast.AST):
        return node
    if node in new:
        return new[node]
    made = type(node)(**{name: replaced(value, new) for name, value in ast.iter_fields(node)})
    return ast.copy_location(made, node)


def calls(tree: Node) -> Iterator[ast.Call]:
    """All calls in the tree."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def name_of(call: ast.Call) -> str:
    """`spmd.all_reduce`; of a method `.sum`."""
    if isinstance(call.func, ast.Attribute) and not isinstance(call.func.value, ast.Name):
        return f".{call.func.attr}"
    return ast.unparse(call.func)


def is_step(node: Node) -> bool:
    """Whether it is a call that changes a type."""
    return isinstance(node, ast.Call) and name_of(node) in STEPS


def steps(tree: Node) -> Iterator[ast.Call]:
    """All calls in the tree that change a type."""
    return (node for node in calls(tree) if is_step(node))


def axes_of(node: Node) -> tuple[str, ...]:
    """The axes on which calls in the tree change types."""
    found: dict[str, None] = {}
    for step in steps(node):
        if len(step.args) > 1:
            found[ast.literal_eval(step.args[1])] = None
        for keyword in step.keywords:
            if isinstance(keyword.value, ast.Dict):
                found.update(dict.fromkeys(ast.literal_eval(key) for key in keyword.value.keys if key is not None))
    return tuple(found)


def of_step(step: ast.Call, inner: Any) -> ast.Call:
    """The same step of another argument."""
    return ast.Call(step.func, [inner, *step.args[1:]], step.keywords)


def blocks(tree: Node) -> Iterator[list[ast.stmt]]:
    """The lists of statements that run one after the other."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            yield body


def expression(text: str) -> Any:
    """The tree of an expression."""
    return ast.parse(text, mode="eval").body


def statement(text: str) -> Any:
    """The tree of a statement."""
    return ast.parse(text).body[0]


def number(value: int) -> Any:
    """A whole number as source."""
    return ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))

"""Faults of gradients, of backwards and of what is written in place."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from typing import Final

from meshwright.types.kinds import Shard
from tests.mutants.operator import NO_MEANING, is_of_gradients, of_gradients, on_others, operator
from tests.mutants.program import Program
from tests.mutants.rewrite import (
    Edit,
    axes_of,
    blocks,
    calls,
    edit,
    expression,
    is_step,
    statement,
)


@operator("gradient not reduced")
def gradient_missing(program: Program) -> Iterator[Edit]:
    for body in blocks(program.tree):
        for node in body:
            if is_of_gradients(node):
                yield edit(node, [ast.Pass()], *axes_of(node))
            if isinstance(node, ast.For) and any(map(is_of_gradients, node.body)):
                assert isinstance(node.iter, ast.Tuple)
                for each in node.iter.elts:
                    fewer = ast.Tuple([other for other in node.iter.elts if other is not each])
                    yield edit(node.iter, fewer, *axes_of(node))


@operator("gradient reduced twice")
def gradient_twice(program: Program) -> Iterator[Edit]:
    for body in blocks(program.tree):
        for node in body:
            if is_of_gradients(node):
                yield edit(node, [node, node], *axes_of(node))
            if isinstance(node, ast.For) and any(map(is_of_gradients, node.body)):
                assert isinstance(node.iter, ast.Tuple)
                for each in node.iter.elts:
                    yield edit(node.iter, ast.Tuple([*node.iter.elts, each]), *axes_of(node))


@operator("gradient reduced on another axis")
def gradient_elsewhere(program: Program) -> Iterator[Edit]:
    for call in of_gradients(program):
        yield from on_others(program, call, 1)


@operator("gradient divided by the ranks of its shards")
def gradient_averaged(program: Program) -> Iterator[Edit]:
    """As where a mean over ranks is wanted of the loss, and each rank has the whole gradient of its own part."""
    kept = [name for name in program.inputs if f"{name}.grad" in program.outputs]
    for node in program.tree.body:
        if isinstance(node, ast.Expr) and ast.unparse(node).endswith(".backward()"):
            for name in kept:
                for axis, kind in program.inputs[name].items():
                    if isinstance(kind, Shard):
                        divided = f"{name}.grad = {name}.grad / spmd.axis_size({axis!r})"
                        yield edit(node, [node, statement(divided)], axis)


@operator("wrong backward")
def wrong_backward(program: Program) -> Iterator[Edit]:
    for function in ast.walk(program.tree):
        if isinstance(function, ast.FunctionDef) and function.name == "backward":
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and node.value is not None:
                    axes = axes_of(node)
                    yield edit(node.value, ast.BinOp(ast.Constant(2), ast.Mult(), node.value), *axes)
                    yield edit(node.value, ast.UnaryOp(ast.USub(), node.value), *axes)
                    if not axes:
                        for axis in program.axes:
                            again = f"spmd.all_reduce({ast.unparse(node.value)}, '{axis}', src=P, dst=R)"
                            yield edit(node.value, expression(again), axis)


NO_MEANING.add("wrong backward")


@operator("write through an alias")
def aliased(program: Program) -> Iterator[Edit]:
    """A rank's own value, written into what all ranks of an axis hold alike; one form after the other."""
    forms = itertools.cycle(_ALIASES)
    for node in program.tree.body:
        if not isinstance(node, ast.Assign) or "given(" not in ast.unparse(node.value) or "below" in ast.unparse(node):
            continue
        name = ast.unparse(node.targets[0])
        for axis, kind in program.inputs[name].items():
            if kind.letter in "RI":
                text = next(forms).format(name=name, place=f"spmd.axis_index('{axis}')")
                yield edit(node, [node, statement(text)], axis)


_ALIASES: Final = (
    "{name}.detach().add_({place})",
    "{name}.data.mul_(1 + {place})",
    "{name}.detach().movedim(0, -1).add_({place})",
    "{name}.detach()[...] += int({place})",
    "torch._foreach_add_([{name}.detach()], int({place}))",
)


@operator("unreduced write")
def unreduced_write(program: Program) -> Iterator[Edit]:
    """Into a view of a buffer goes what was not reduced."""
    for call in calls(program.tree):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr in ("copy_", "add_", "mul_") and call.args):
            continue
        source = _assigned(program, call.args[0])
        if source is not None:
            view = ast.Call(ast.Attribute(call.func.value, "view_as"), [call.func.value], [])
            through = ast.Call(ast.Attribute(view, call.func.attr), [source.args[0]], call.keywords)
            yield edit(call, through, *axes_of(source))


def _assigned(program: Program, value: ast.AST) -> ast.Call | None:
    """The last collective that made a name."""
    found = None
    for body in blocks(program.tree):
        for node in body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and is_step(node.value):
                found = node.value if ast.unparse(node.targets[0]) == ast.unparse(value) else found
    return found


@operator("gradient changed in a hook")
def hooked(program: Program) -> Iterator[Edit]:
    """Of the first operand that every rank of an axis has alike, the gradient is reduced once more in a hook."""
    axes = set(program.axes)
    for node in program.tree.body:
        if not isinstance(node, ast.Assign) or "wants=True" not in ast.unparse(node.value):
            continue
        name = ast.unparse(node.targets[0])
        for axis, kind in program.inputs[name].items():
            if kind.letter == "R" and axis in axes and f"{name}.grad" in program.outputs:
                axes.remove(axis)
                again = f"{name}.register_hook(lambda g: spmd.all_reduce(g, '{axis}', src=P, dst=R))"
                yield edit(node, [node, statement(again)], axis)

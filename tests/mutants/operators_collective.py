"""Faults of collectives and of stated types: dropped, doubled, moved, on another axis, dim or type."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from typing import Any, Final

from tests.mutants.operator import of_gradients, of_values, on_others, operator
from tests.mutants.program import Program, is_stated
from tests.mutants.rewrite import (
    Edit,
    axes_of,
    blocks,
    calls,
    edit,
    expression,
    is_step,
    name_of,
    of_step,
    steps,
)


@operator("collective dropped")
def dropped(program: Program) -> Iterator[Edit]:
    for step in of_values(program):
        yield edit(step, step.args[0], *axes_of(step))


@operator("collective doubled")
def doubled(program: Program) -> Iterator[Edit]:
    for step in of_values(program):
        yield edit(step, of_step(step, step), *axes_of(step))


@operator("other axis")
def other_axis(program: Program) -> Iterator[Edit]:
    gradients = of_gradients(program)
    for call in calls(program.tree):
        place = {"spmd.axis_index": 0, "spmd.axis_size": 0}.get(name_of(call), 1 if is_step(call) else None)
        if place is None or len(call.args) <= place or call in gradients:
            continue
        yield from on_others(program, call, place)


@operator("other dim")
def other_dim(program: Program) -> Iterator[Edit]:
    for step in steps(program.tree):
        for shard in _shards(step):
            dim = shard.args[0].value
            for other in {dim + 1, max(dim - 1, 0)} - {dim}:
                yield edit(shard, expression(f"S({other})"), *axes_of(step))


def _shards(step: ast.Call) -> Iterator[ast.Call]:
    for keyword in step.keywords:
        yield from (call for call in calls(keyword.value) if name_of(call) == "S")


@operator("other type")
def other_type(program: Program) -> Iterator[Edit]:
    for step in steps(program.tree):
        for keyword in step.keywords:
            if isinstance(keyword.value, ast.Name):
                for other in _OTHERS[keyword.value.id]:
                    yield edit(keyword.value, ast.Name(other), *axes_of(step))


_OTHERS: Final = {"R": ("I", "P"), "I": ("R", "P"), "P": ("R",), "V": ("R",)}


@operator("stated otherwise")
def stated_otherwise(program: Program) -> Iterator[Edit]:
    """Of operands: the type that is stated is not what the rank holds."""
    for call in calls(program.tree):
        if not is_stated(call) or not isinstance(call.args[0], ast.Call) or name_of(call.args[0]) != "given":
            continue
        stated: Any = call.args[1]
        for key, kind in zip(stated.keys, stated.values, strict=True):
            if isinstance(kind, ast.Name):
                others = [ast.Name(other) for other in _OTHERS[kind.id]]
            else:
                others = [ast.Name("R"), expression(f"S({kind.args[0].value + 1})")]
            for other in others:
                yield edit(kind, other, key.value)


@operator("order of axes")
def order_of_axes(program: Program) -> Iterator[Edit]:
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Dict) and node.values and all(map(_is_shard, node.values)):
            axes = [key.value for key in node.keys]
            if len({ast.unparse(value) for value in node.values}) < len(axes):
                yield edit(node, ast.Dict(node.keys[::-1], node.values[::-1]), *axes)


def _is_shard(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and name_of(node) == "S"


@operator("two collectives change places")
def places_changed(program: Program) -> Iterator[Edit]:
    """Of adjacent ones on two axes each takes the axis of the other."""
    for body in blocks(program.tree):
        for first, second in itertools.pairwise(body):
            if not (isinstance(first, ast.Assign) and isinstance(second, ast.Assign)):
                continue
            one, other = first.value, second.value
            if is_step(one) and is_step(other) and len(axes := {*axes_of(one), *axes_of(other)}) == 2:
                mine, theirs = (step.args[1:2] for step in (one, other) if isinstance(step, ast.Call))
                if mine and theirs:
                    yield Edit({mine[0]: theirs[0], theirs[0]: mine[0]}, tuple(sorted(axes)), first.lineno)


@operator("collective on one rank")
def on_one_rank(program: Program) -> Iterator[Edit]:
    for step in of_values(program):
        for axis in axes_of(step):
            first = f"int(spmd.axis_index('{axis}')) == 0"
            yield edit(step, ast.IfExp(expression(first), step, step.args[0]), axis)


@operator("moved into the reduction")
def moved_inside(program: Program) -> Iterator[Edit]:
    for node in ast.walk(program.tree):
        if isinstance(node, ast.BinOp):
            if is_step(node.left):
                yield edit(
                    node,
                    of_step(node.left, ast.BinOp(node.left.args[0], node.op, node.right)),
                    *axes_of(node.left),
                )
            if is_step(node.right):
                yield edit(
                    node,
                    of_step(node.right, ast.BinOp(node.left, node.op, node.right.args[0])),
                    *axes_of(node.right),
                )
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_step(node.func.value):
            step: Any = node.func.value
            inner = ast.Call(ast.Attribute(step.args[0], node.func.attr), node.args, node.keywords)
            yield edit(node, of_step(step, inner), *axes_of(step))


@operator("moved out of the reduction")
def moved_outside(program: Program) -> Iterator[Edit]:
    for step in of_values(program):
        inner = step.args[0]
        if isinstance(inner, ast.BinOp) and not isinstance(inner.op, ast.MatMult):
            yield edit(step, ast.BinOp(of_step(step, inner.left), inner.op, inner.right), *axes_of(step))
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and not is_step(inner):
            before = inner.func.value
            if isinstance(before, ast.Name) and before.id in ("torch", "F"):
                continue
            after = ast.Call(ast.Attribute(of_step(step, before), inner.func.attr), inner.args, inner.keywords)
            yield edit(step, after, *axes_of(step))


@operator("statements swapped")
def swapped(program: Program) -> Iterator[Edit]:
    """What is done to a value before and after a collective: a bias, a scale, a norm; or two collectives."""
    for body in blocks(program.tree):
        for first, second in itertools.pairwise(body):
            if not (isinstance(first, ast.Assign) and isinstance(second, ast.Assign)):
                continue
            target = ast.unparse(first.targets[0])
            same = target == ast.unparse(second.targets[0])
            if same and any(map(is_step, (first.value, second.value))) and _uses(first.value, target):
                yield Edit({first: [second, first], second: []}, axes_of(first) + axes_of(second), first.lineno)


def _uses(node: ast.AST, target: str) -> bool:
    return any(isinstance(each, ast.Name | ast.Attribute) and ast.unparse(each) == target for each in ast.walk(node))

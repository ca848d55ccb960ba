"""Faults of numbers: counts, lengths, places, seeds, masks, reduced dims."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator
from typing import Final

from tests.mutants.operator import operator
from tests.mutants.program import Program
from tests.mutants.rewrite import (
    Edit,
    axes_of,
    calls,
    edit,
    expression,
    name_of,
    number,
    replaced,
)


@operator("mean for sum over count")
def mean(program: Program) -> Iterator[Edit]:
    for node in ast.walk(program.tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            for call in calls(node.left):
                if isinstance(call.func, ast.Attribute) and call.func.attr == "sum":
                    named = ast.Attribute(call.func.value, "mean")
                    yield edit(node, replaced(node.left, {call.func: named}), *axes_of(node.left))


@operator("local length for global")
def local_length(program: Program) -> Iterator[Edit]:
    """In place of a count of positions: of the first operand that has as many, and holds a part of them."""
    for node in ast.walk(program.tree):
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant)):
            continue
        for name, dim, axes in itertools.islice(_lengths(program, node.right.value), 1):
            length = f"{name}.numel()" if dim is None else f"{name}.shape[{dim}]"
            for form in _FORMS if dim != 0 else (*_FORMS, f"len({name})"):
                yield edit(node.right, expression(form.format(length)), *axes)


@operator("local length for spmd.size")
def for_size(program: Program) -> Iterator[Edit]:
    for call in calls(program.tree):
        if name_of(call) == "spmd.size":
            x, dim, *axes = map(ast.unparse, call.args)
            for form in _FORMS:
                yield edit(call, expression(form.format(f"{x}.shape[{dim}]")), *map(ast.literal_eval, axes))


_FORMS: Final = ("{}", "int({})", "float({})", "torch.tensor({})")


@operator("length as the checker has it")
def size_of_checker(program: Program) -> Iterator[Edit]:
    for node in ast.walk(program.tree):
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant)):
            continue
        for name, dim, axes in _lengths(program, node.right.value):
            if dim is not None:
                yield edit(node.right, expression(f"spmd.size({name}, {dim})"), *axes)


def _lengths(program: Program, count: object) -> Iterator[tuple[str, int | None, tuple[str, ...]]]:
    """Operands of which a dim, or all of them together, have that many positions, and which axes cut it."""
    for name, shape in _shapes(program):
        layout = program.inputs[name]
        for dim, length in enumerate(shape):
            if length == count and layout.sharding(dim):
                yield name, dim, layout.sharding(dim)
        if math.prod(shape) == count and layout.sharded:
            yield name, None, tuple(layout.sharded)


def _shapes(program: Program) -> Iterator[tuple[str, tuple[int, ...]]]:
    for call in calls(program.tree):
        if name_of(call) == "given":
            yield ast.literal_eval(call.args[0]), ast.literal_eval(call.args[1])


@operator("number of ranks dropped")
def size_dropped(program: Program) -> Iterator[Edit]:
    """Or counted twice."""
    for node in ast.walk(program.tree):
        if isinstance(node, ast.BinOp) and _counts_ranks(node.right):
            axis = ast.literal_eval(node.right.args[0])
            yield edit(node, node.left, axis)
            yield edit(node, ast.BinOp(node, node.op, node.right), axis)


def _counts_ranks(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and name_of(node) == "spmd.axis_size"


@operator("factor of the rank")
def rank_factor(program: Program) -> Iterator[Edit]:
    for node in ast.walk(program.tree):
        product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
        named = isinstance(node, ast.Call) and name_of(node) in (
            "F.linear",
            "torch.einsum",
            "torch.softmax",
            "F.rms_norm",
        )
        if product or named:
            for axis in program.axes:
                for place in (f"spmd.axis_index('{axis}')", f"int(spmd.axis_index('{axis}'))"):
                    yield edit(node, ast.BinOp(node, ast.Mult(), expression(f"1 + {place}")), axis)


@operator("place of the rank dropped")
def place_dropped(program: Program) -> Iterator[Edit]:
    for call in calls(program.tree):
        if name_of(call) == "spmd.axis_index":
            yield edit(call, ast.Constant(0), ast.literal_eval(call.args[0]))


@operator("seed of the rank")
def seeds(program: Program) -> Iterator[Edit]:
    for call in calls(program.tree):
        if name_of(call) == "torch.manual_seed":
            for axis in program.axes:
                for place in (f"spmd.axis_index('{axis}')", f"int(spmd.axis_index('{axis}'))"):
                    yield edit(call.args[0], ast.BinOp(call.args[0], ast.Add(), expression(place)), axis)


@operator("other reduced dim")
def other_reduced_dim(program: Program) -> Iterator[Edit]:
    for call in calls(program.tree):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _REDUCING or not call.args:
            continue
        try:
            dim = ast.literal_eval(call.args[-1])
        except ValueError:
            continue
        if isinstance(dim, int):
            for other in (dim + 1, dim - 1) if dim > 0 else (dim - 1,) if dim < 0 else (1, -1):
                yield edit(call.args[-1], number(other))


_REDUCING: Final = frozenset({"softmax", "sum", "amax", "max", "argmax", "mean", "flatten", "unbind"})


@operator("mask dropped")
def mask_dropped(program: Program) -> Iterator[Edit]:
    for call in calls(program.tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "masked_fill":
            yield edit(call, call.func.value)
        for keyword in call.keywords:
            if keyword.arg in ("attn_mask", "is_causal"):
                yield edit(call, ast.Call(call.func, call.args, [one for one in call.keywords if one is not keyword]))

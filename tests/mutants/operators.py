"""Kinds of faults: each finds all places of a program where it can be planted."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, Final

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
    number,
    of_step,
    replaced,
    statement,
    steps,
)

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


def _is_of_gradients(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(".grad") and is_step(node.value)


def _of_gradients(program: Program) -> set[ast.AST]:
    return {node.value for body in blocks(program.tree) for node in body if _is_of_gradients(node)}  # type: ignore[attr-defined]


def _of_values(program: Program) -> Iterator[ast.Call]:
    others = _of_gradients(program)
    return (step for step in steps(program.tree) if step not in others)


@operator("collective dropped")
def dropped(program: Program) -> Iterator[Edit]:
    for step in _of_values(program):
        yield edit(step, step.args[0], *axes_of(step))


@operator("collective doubled")
def doubled(program: Program) -> Iterator[Edit]:
    for step in _of_values(program):
        yield edit(step, of_step(step, step), *axes_of(step))


@operator("other axis")
def other_axis(program: Program) -> Iterator[Edit]:
    gradients = _of_gradients(program)
    for call in calls(program.tree):
        place = {"spmd.axis_index": 0, "spmd.axis_size": 0}.get(name_of(call), 1 if is_step(call) else None)
        if place is None or len(call.args) <= place or call in gradients:
            continue
        yield from _on_others(program, call, place)


def _on_others(program: Program, call: ast.Call, place: int) -> Iterator[Edit]:
    mine = ast.literal_eval(call.args[place])
    for axis in program.axes:
        if axis != mine:
            yield edit(call.args[place], ast.Constant(axis), mine, axis)


@operator("other dim")
def other_dim(program: Program) -> Iterator[Edit]:
    for step in steps(program.tree):
        for shard in _shards(step):
            dim = shard.args[0].value  # type: ignore[attr-defined]
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


@operator("moved into the reduction")
def moved_inside(program: Program) -> Iterator[Edit]:
    for node in ast.walk(program.tree):
        if isinstance(node, ast.BinOp):
            if is_step(node.left):
                yield edit(
                    node,
                    of_step(node.left, ast.BinOp(node.left.args[0], node.op, node.right)),  # type: ignore[attr-defined, arg-type]
                    *axes_of(node.left),
                )
            if is_step(node.right):
                yield edit(
                    node,
                    of_step(node.right, ast.BinOp(node.left, node.op, node.right.args[0])),  # type: ignore[attr-defined, arg-type]
                    *axes_of(node.right),
                )
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_step(node.func.value):
            step: Any = node.func.value
            inner = ast.Call(ast.Attribute(step.args[0], node.func.attr), node.args, node.keywords)
            yield edit(node, of_step(step, inner), *axes_of(step))


@operator("moved out of the reduction")
def moved_outside(program: Program) -> Iterator[Edit]:
    for step in _of_values(program):
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
        for first, second in zip(body, body[1:], strict=False):
            if not (isinstance(first, ast.Assign) and isinstance(second, ast.Assign)):
                continue
            target = ast.unparse(first.targets[0])
            same = target == ast.unparse(second.targets[0])
            if same and any(map(is_step, (first.value, second.value))) and _uses(first.value, target):
                yield Edit({first: [second, first], second: []}, axes_of(first) + axes_of(second), first.lineno)


def _uses(node: ast.AST, target: str) -> bool:
    return any(isinstance(each, ast.Name | ast.Attribute) and ast.unparse(each) == target for each in ast.walk(node))


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
    for node in ast.walk(program.tree):
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant)):
            continue
        for name, shape in _shapes(program):
            layout = program.inputs[name]
            for dim, length in enumerate(shape):
                axes = layout.sharding(dim)
                if axes and length == node.right.value:
                    for text in (f"{name}.shape[{dim}]", f"int({name}.shape[{dim}])", f"{name}.size({dim})"):
                        yield edit(node.right, expression(text), *axes)
            count = 1
            for length in shape:
                count *= length
            if count == node.right.value and layout.sharded:
                for text in (f"{name}.numel()", f"int({name}.numel())"):
                    yield edit(node.right, expression(text), *layout.sharded)


def _shapes(program: Program) -> Iterator[tuple[str, tuple[int, ...]]]:
    for call in calls(program.tree):
        if name_of(call) == "given":
            yield ast.literal_eval(call.args[0]), ast.literal_eval(call.args[1])


@operator("gradient not reduced")
def gradient_missing(program: Program) -> Iterator[Edit]:
    for body in blocks(program.tree):
        for node in body:
            if _is_of_gradients(node):
                yield edit(node, [ast.Pass()], *axes_of(node))
            if isinstance(node, ast.For) and any(map(_is_of_gradients, node.body)):
                assert isinstance(node.iter, ast.Tuple)
                for each in node.iter.elts:
                    fewer = ast.Tuple([other for other in node.iter.elts if other is not each])
                    yield edit(node.iter, fewer, *axes_of(node))


@operator("gradient reduced twice")
def gradient_twice(program: Program) -> Iterator[Edit]:
    for body in blocks(program.tree):
        for node in body:
            if _is_of_gradients(node):
                yield edit(node, [node, node], *axes_of(node))
            if isinstance(node, ast.For) and any(map(_is_of_gradients, node.body)):
                assert isinstance(node.iter, ast.Tuple)
                for each in node.iter.elts:
                    yield edit(node.iter, ast.Tuple([*node.iter.elts, each]), *axes_of(node))


@operator("gradient reduced on another axis")
def gradient_elsewhere(program: Program) -> Iterator[Edit]:
    for call in _of_gradients(program):
        yield from _on_others(program, call, 1)  # type: ignore[arg-type]


@operator("factor of the rank")
def rank_factor(program: Program) -> Iterator[Edit]:
    for node in ast.walk(program.tree):
        product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
        named = isinstance(node, ast.Call) and name_of(node) in ("F.linear", "torch.einsum", "torch.softmax", "F.rms_norm")
        if product or named:
            for axis in program.axes:
                for place in (f"spmd.axis_index('{axis}')", f"int(spmd.axis_index('{axis}'))"):
                    yield edit(node, ast.BinOp(node, ast.Mult(), expression(f"1 + {place}")), axis)  # type: ignore[arg-type]


@operator("write through an alias")
def aliased(program: Program) -> Iterator[Edit]:
    """A rank's own value, written into what all ranks of an axis hold alike."""
    for node in program.tree.body:
        if not isinstance(node, ast.Assign) or "given(" not in ast.unparse(node.value) or "below" in ast.unparse(node):
            continue
        name = ast.unparse(node.targets[0])
        for axis, kind in program.inputs[name].items():
            if kind.letter not in "RI":
                continue
            place = f"spmd.axis_index('{axis}')"
            for text in (
                f"{name}.detach().view(-1)[:1].add_({place})",
                f"{name}.data.view(-1)[:1].mul_(1 + {place})",
                f"{name}.detach().view(-1)[0] += int({place})",
            ):
                yield edit(node, [node, statement(text)], axis)


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
                if ast.unparse(node.targets[0]) == ast.unparse(value):
                    found = node.value
    return found


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


@operator("seed of the rank")
def seeds(program: Program) -> Iterator[Edit]:
    for call in calls(program.tree):
        if name_of(call) == "torch.manual_seed":
            for axis in program.axes:
                for place in (f"spmd.axis_index('{axis}')", f"int(spmd.axis_index('{axis}'))"):
                    yield edit(call.args[0], ast.BinOp(call.args[0], ast.Add(), expression(place)), axis)


@operator("mask dropped")
def mask_dropped(program: Program) -> Iterator[Edit]:
    for call in calls(program.tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "masked_fill":
            yield edit(call, call.func.value)
        for keyword in call.keywords:
            if keyword.arg in ("attn_mask", "is_causal"):
                yield edit(call, ast.Call(call.func, call.args, [one for one in call.keywords if one is not keyword]))


@operator("order of axes")
def order_of_axes(program: Program) -> Iterator[Edit]:
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Dict) and all(isinstance(value, ast.Call) and name_of(value) == "S" for value in node.values):
            if len({ast.unparse(value) for value in node.values}) < len(node.values):
                axes = [key.value for key in node.keys]  # type: ignore[union-attr]
                yield edit(node, ast.Dict(node.keys[::-1], node.values[::-1]), *axes)

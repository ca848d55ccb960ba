"""A program on simulated ranks against one device; and what an error prints, pasted into the program.

Operands go by the names that the checker gives them, so that a printed fix can be run as it stands.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from meshwright.errors import Problem
from meshwright.types.layout import SpmdLayout
from tests.check.judged import judged, refusal
from tests.denotation import denoted, local, sample

Program = Callable[..., Any]


@dataclass(frozen=True)
class Held:
    """What the ranks hold together, as what, and whether it wants a gradient."""

    whole: Tensor
    layout: Mapping[str, spmd.SpmdType]
    wants: bool = True

    def on_rank(self, dims: ParallelismDims, rank: int) -> Tensor:
        """What one rank holds, typed."""
        x = local(self.layout, self.whole, dims, rank)
        return spmd.assert_type(x.requires_grad_(self.wants and x.is_floating_point()), self.layout)

    def alone(self) -> Tensor:
        """What one device holds."""
        return self.whole.clone().requires_grad_(self.wants and self.whole.is_floating_point())


def agrees(program: Program, dims: ParallelismDims, /, mended: Sequence[str] = (), **operands: Held) -> SpmdLayout:
    """The layout of the result of an accepted program, which denotes what one device has, values and gradients.

    mended: calls as an error prints them, each of which is applied to the operand that it names before the program.
    """
    single = {name: operand.alone() for name, operand in operands.items()}
    expected = program(**single)
    seed = sample(expected.shape, seed=50)
    wanted = [name for name, x in single.items() if x.requires_grad]
    true = _gradients(expected, [single[name] for name in wanted], seed)

    def on_rank(rank: int) -> tuple[Tensor, SpmdLayout, list[Tensor | None]]:
        leaves = {name: operand.on_rank(dims, rank) for name, operand in operands.items()}
        used = leaves
        for call in mended:
            used = pasted(call, used)
        result = program(**used)
        layout = spmd.layout_of(result)
        own = spmd.assert_type(local(layout.dual, seed, dims, rank), layout.dual)
        return result.detach(), layout, _gradients(result, [leaves[name] for name in wanted], own)

    results, layouts, gradients = zip(*judged(on_rank, dims), strict=True)
    assert len(set(layouts)) == 1, "ranks disagree on the type"
    torch.testing.assert_close(denoted(layouts[0], results, dims), expected.detach(), rtol=1e-9, atol=1e-9)
    for place, name in enumerate(wanted):
        if true[place] is not None:
            found = denoted(SpmdLayout(operands[name].layout).dual, [each[place] for each in gradients], dims)
            torch.testing.assert_close(found, true[place], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
    return layouts[0]


def _gradients(result: Tensor, leaves: list[Tensor], seed: Tensor) -> list[Tensor | None]:
    if not result.requires_grad or not leaves:
        return [None] * len(leaves)
    return list(torch.autograd.grad(result, leaves, seed, allow_unused=True))


def refused_and_mended(program: Program, dims: ParallelismDims, /, **operands: Held) -> Problem:
    """What is said of a program that is refused; each fix that is printed as calls makes it clean and right."""
    problem = refusal(lambda rank: program(**{name: each.on_rank(dims, rank) for name, each in operands.items()}), dims)
    ways = list(alternatives(problem.fix))
    assert ways, f"no call in: {problem.fix}"
    for calls in ways:
        agrees(program, dims, calls, **operands)
    return problem


def alternatives(fix: str) -> Iterable[list[str]]:
    """The calls of each fix of a text, in order."""
    for way in fix.split("; or "):
        calls = _calls(way)
        if calls:
            yield calls


def _calls(text: str) -> list[str]:
    found = []
    for start in re.finditer(r"\b(convert|reinterpret|all_gather|all_reduce|reduce_scatter|all_to_all)\(", text):
        depth = 0
        for end in range(start.end() - 1, len(text)):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            if depth == 0:
                found.append(text[start.start() : end + 1])
                break
    return found


def pasted(call: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """The names, with the result of `call` in place of the tensor that it takes first."""
    tree = ast.parse(call, mode="eval").body
    assert isinstance(tree, ast.Call)
    target = ast.unparse(tree.args[0])
    assert target in names, f"{call} names none of {', '.join(names)}"
    return {**names, target: eval(call, {**vars(spmd), **names})}

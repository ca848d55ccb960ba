"""Sampled layouts for programs whose operands have fixed shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from meshwright.comm.grid import ParallelismDims
from meshwright.types.kinds import I, P, R, S, V
from meshwright.types.layout import SpmdLayout
from tests.check.oracle import GRID, TP, Given, positive


@dataclass(frozen=True)
class Program:
    """run: the call, on as many tensors as there are shapes; every length divides by 4, or is 1.

    lists: operands may be V; False where a result does not depend on all of them.
    """

    name: str
    run: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    lists: bool = True

    def __str__(self) -> str:
        return self.name


@st.composite
def operands(draw: st.DrawFn, program: Program) -> tuple[list[Given], ParallelismDims]:
    """A layout for each operand, on tp alone or on dp and tp in any order."""
    dims = draw(st.sampled_from((TP, TP, GRID)))
    listed = draw(st.sampled_from(("", "", "", "tp"))) if program.lists else ""
    found = []
    for number, shape in enumerate(program.shapes):
        types = {}
        for axis in ("tp",) if dims is TP else draw(st.permutations(("dp", "tp"))):
            cuts = [S(dim) for dim, length in enumerate(shape) if length > 1]
            types[axis] = draw(st.sampled_from((R, R, I, P, *([V] * 3 if axis == listed else cuts * 2))))
        layout = SpmdLayout(types)
        lists = [2] if V in types.values() else []
        found.append(Given(positive(*lists, *shape, seed=number), layout, draw(st.booleans())))
    return found, dims

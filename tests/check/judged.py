"""Programs on thread ranks with real values, judged as they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from meshwright.check import typecheck
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.threads import run_ranks
from meshwright.errors import Problem, SpmdTypeError

T = TypeVar("T")


def judged(program: Callable[[int], T], dims: ParallelismDims) -> list[T]:
    """What each rank returns of a program that is accepted."""

    def checked(rank: int) -> T:
        with typecheck():
            return program(rank)

    return run_ranks(dims, checked)


def refusal(program: Callable[[int], object], dims: ParallelismDims) -> Problem:
    """What is said of a program that is refused."""
    with pytest.raises(SpmdTypeError) as error:
        judged(program, dims)
    (problem,) = error.value.problems
    return problem


def says(problem: Problem, axis: str, kinds: str, fix: str = "") -> None:
    """The refusal names the axis, every type of `kinds` (`"I, S(0)"`), a reason, and the fix."""
    assert f"axis {axis!r}" in problem.where + problem.what
    for kind in kinds.split(", "):
        assert f" {kind}" in problem.what, f"{kind} in: {problem.what}"
    assert problem.why
    assert problem.where
    assert fix in problem.fix, f"{fix} in: {problem.fix}"


def on(axis: str, degree: int) -> ParallelismDims:
    """A mesh of one axis."""
    return ParallelismDims(**{"dp_shard" if axis == "dp" else axis: degree})

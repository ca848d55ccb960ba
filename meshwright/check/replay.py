"""The same program for several ranks in turn, held against each other: where they part, Python knew the rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from meshwright.check import source
from meshwright.check.context import checking
from meshwright.check.report import Call, Report
from meshwright.codes import Code
from meshwright.comm.scope import View, set_current_mesh
from meshwright.comm.shapes import mesh
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import CALLABLE, DEGREES, FLAG, demand


def check(program: Callable[[], Any], axes: Mapping[str, int], *, local: bool = False) -> Report:
    """Judge `program` as each of the corner ranks of a mesh runs it, and that all run the same.

    axes: axis -> number of ranks, outermost first. No process group is needed: collectives have nobody to talk to.
    The program is called once for each corner rank, with no arguments, and makes its own tensors, which it types.

    Errors: `SpmdTypeError` with all problems.
    """
    demand("check", "program", program, CALLABLE)
    demand("check", "axes", axes, DEGREES)
    demand("check", "local", local, FLAG)
    report = Report()
    traces: dict[int, list[Call]] = {}
    places = {}
    for rank, place in corners(axes):
        view = mesh(rank=rank, **axes)
        places[rank] = place
        traces[rank] = _traced(program, view, rank, local, report)
    told = {problem.where for problem in report.problems}
    for problem in differences(traces, places):
        if problem.where not in told:
            report.add(problem)
    report.demand_none()
    return report


def corners(axes: Mapping[str, int]) -> Iterator[tuple[int, dict[str, int]]]:
    """The first rank, the last of each axis with all else as the first, and the last of all: rank, and its places."""
    seen = set()
    on = [axis for axis, degree in axes.items() if degree > 1]
    for moved in ([], *([axis] for axis in on), on):
        place = {axis: axes[axis] - 1 if axis in moved else 0 for axis in axes}
        rank = 0
        for axis, degree in axes.items():
            rank = rank * degree + place[axis]
        if rank not in seen:
            seen.add(rank)
            yield rank, place


def _traced(program: Callable[[], Any], view: View, rank: int, local: bool, report: Report) -> list[Call]:
    trace: list[Call] = []
    with set_current_mesh(view), checking(report, local=local, collect=True, trace=trace, rank=rank):
        try:
            program()
        except SpmdTypeError as error:
            for problem in error.problems:
                report.add(problem)
        except (RuntimeError, ValueError, IndexError) as error:
            if not report.problems:  # else it comes of what is wrong
                report.add(_failed(rank, error))
    return trace


def _failed(rank: int, error: Exception) -> Problem:
    return Problem(
        where=source.line_of(error.__traceback__),
        what=f"rank {rank} fails: {type(error).__name__}: {error}",
        why="what a rank holds does not fit together",
        fix="local shapes that fit on every rank, and types that say which dims they are parts of",
        code=Code.SHAPE,
    )


def differences(traces: Mapping[int, Sequence[Call]], places: Mapping[int, Mapping[str, int]]) -> list[Problem]:
    """Where each rank first parts from the first one."""
    ranks = list(traces)
    found = []
    told: set[str] = set()
    for rank in ranks[1:]:
        axes = [axis for axis in places[rank] if places[rank][axis] != places[ranks[0]][axis]]
        for mine, theirs in zip_longest(traces[ranks[0]], traces[rank]):
            if mine is not None and theirs is not None and (mine.name, mine.static) == (theirs.name, theirs.static):
                continue
            one = theirs or mine
            assert one is not None
            if one.line not in told:
                told.add(one.line)
                found.append(_parted(one.line, ranks[0], mine, rank, theirs, axes))
            break
    return found


def _parted(line: str, first: int, mine: Call | None, rank: int, theirs: Call | None, axes: Sequence[str]) -> Problem:
    on = ", ".join(map(repr, axes))
    return Problem(
        where=line,
        what=f"on axis {on} ranks run different programs: rank {first} {_does(mine)}, rank {rank} {_does(theirs)}",
        why="a number or a branch of Python depends on the rank, and the types do not know of it",
        fix=f"the same call with the same numbers on every rank; what is to differ is a tensor that is V or sharded on "
        f"{on}, made with spmd.axis_index({axes[0]!r}) or convert(x, {axes[0]!r}, src=R, dst=V)",
        code=Code.RANKS_DIFFER,
    )


def _does(call: Call | None) -> str:
    return _ENDS if call is None else f"calls {call}"


_ENDS: Final = "has ended"

"""Every mutant, what it is by its values, and what the checker says of it."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from torch import Tensor

import meshwright.spmd as spmd
from tests.mutants.operators import NO_MEANING, OPERATORS
from tests.mutants.program import Program
from tests.mutants.programs import PROGRAMS
from tests.mutants.rewrite import rewritten
from tests.mutants.truth import Run, Truth, one_device, truth


@dataclass(frozen=True)
class Mutant:
    """A program with one planted fault. axes: what the fault is about. line: in the program's file."""

    program: Program
    operator: str
    tree: ast.FunctionDef
    axes: tuple[str, ...]
    line: int
    number: int

    def __str__(self) -> str:
        return f"{self.program.name}:{self.line} [{self.operator}] {self.source}"

    @property
    def source(self) -> str:
        """The lines that are not those of the right program."""
        before, after = (ast.unparse(tree).splitlines() for tree in (self.program.tree, self.tree))
        changed = [
            line
            for line in difflib.unified_diff(before, after, n=0)
            if line[0] in "+-" and line[1:3] not in ("++", "--")
        ]
        added = [line[1:].strip() for line in changed if line[0] == "+"]
        return "; ".join(added) or "without " + "; ".join(line[1:].strip() for line in changed)

    def built(self) -> Run:
        return self.program.built(self.tree, f"<{self.program.name} {self.number}>")


@dataclass(frozen=True)
class Outcome:
    """truth: what it is by its values, and how that shows. said: the checker's problems, empty where it accepts.

    broke: the error, where the check ended in one that is not the checker's.
    """

    mutant: Mutant
    truth: Truth
    shows: str
    said: tuple[str, ...]
    broke: str = ""

    @property
    def reported(self) -> bool:
        return bool(self.said)

    @property
    def named(self) -> bool:
        """Some problem names an axis that the fault is about."""
        return any(_axes(one) & set(self.mutant.axes) for one in self.said)

    @property
    def named_first(self) -> bool:
        """The first problem does."""
        return bool(self.said) and bool(_axes(self.said[0]) & set(self.mutant.axes))


_AXES: Final = re.compile(r"\bax[ie]s ((?:'\w+'(?:, )?)+)")


def _axes(text: str) -> set[str]:
    return {name for group in _AXES.findall(text) for name in re.findall(r"\w+", group)}


@cache
def mutants(name: str) -> tuple[Mutant, ...]:
    """All of a program, each source once."""
    return tuple(_planted(PROGRAMS[name]))


def _planted(program: Program) -> Iterator[Mutant]:
    seen = {ast.unparse(program.tree)}
    for name, find in OPERATORS.items():
        for one in find(program):
            tree = rewritten(program.tree, one.new)
            text = ast.unparse(tree)
            if text not in seen:
                seen.add(text)
                yield Mutant(program, name, tree, one.axes, program.line + one.line - 1, len(seen))


@cache
def expected(program: str) -> Mapping[str, Tensor]:
    """The results of a right program on one device."""
    return one_device(PROGRAMS[program], PROGRAMS[program].run)


def judged(program: Program, run: Run) -> tuple[tuple[str, ...], str]:
    """What the checker says of `run`, and the error in which the check ended, if that is not the checker's."""
    try:
        spmd.check(lambda: program.on_this_rank(run), program.axes, local=program.local)
    except spmd.SpmdTypeError as refused:
        return tuple(map(str, refused.problems)), ""
    except Exception as error:  # torch's own
        return (), f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return (), ""


def outcome(mutant: Mutant) -> Outcome:
    """What the mutant is, and what is said of it."""
    run = mutant.built()
    found, shows = truth(
        mutant.program, run, expected(mutant.program.name), own_meaning=mutant.operator not in NO_MEANING
    )
    return Outcome(mutant, found, shows, *judged(mutant.program, run))

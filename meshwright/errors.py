"""Every error that meshwright raises on purpose.

    MeshwrightError                 one clear message: where, what, why and a fix
    ├── ConfigError                 a recipe, a flag or a declared sharding is wrong; found before any process starts
    ├── DataError                   text that is missing, empty or unreadable
    ├── SpmdTypeError               a tensor does not have the layout that its use demands
    └── RunError                    a run cannot go on: a loss that is not finite, a rank that died

An error carries `Problem`s, which are data; `str(error)` is the one place that renders them.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from meshwright.codes import Code


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    where: module path and config field, flag, file or source line
    what:  what was found, with the values
    why:   the reason in one sentence ("" where `what` says it all)
    fix:   what to write instead ("" where only the user can know)
    code:  its kind, where there is a page on it
    uneven: whether a length is no multiple of its ranks: another degree would do, and what is declared is not wrong
    """

    where: str
    what: str
    why: str = ""
    fix: str = ""
    code: Code | None = None
    uneven: bool = False

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.code is not None:
            lines[0] += f" [{self.code.value}]"
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class MeshwrightError(Exception):
    """The root: `except MeshwrightError` catches all that meshwright raises on purpose."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        told = alike_together(self.problems)
        if len(told) == 1:
            return str(told[0])
        return "\n".join([f"{len(told)} problems", *(f"{i}. {problem}" for i, problem in enumerate(told, 1))])


class ConfigError(MeshwrightError):
    """A recipe, a flag or a declared sharding is wrong."""


class DataError(MeshwrightError):
    """Text that is missing, empty or unreadable."""


class SpmdTypeError(MeshwrightError):
    """A tensor does not have the layout that its use demands."""


class RunError(MeshwrightError):
    """A run cannot go on."""


def alike_together(problems: Sequence[Problem]) -> list[Problem]:
    """Problems that differ in the number of a layer alone become one, `blocks.0-5.attention`, where the first stood."""
    groups: dict[tuple[tuple[str, ...], str, str, str], list[Problem]] = {}
    for problem in problems:
        words = tuple(_NUMBER.split(problem.where))
        groups.setdefault((words, problem.what, problem.why, problem.fix), []).append(problem)
    return [replace(alike[0], where=_places([problem.where for problem in alike])) for alike in groups.values()]


_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)")


def _places(wheres: Sequence[str]) -> str:
    """One place for all: each number becomes the range from the least to the greatest, or is listed."""
    columns = [sorted(set(map(int, numbers))) for numbers in zip(*map(_NUMBER.findall, wheres), strict=True)]
    spans = iter([_span(numbers) for numbers in columns])
    return _NUMBER.sub(lambda _: next(spans), wheres[0])


def _span(numbers: Sequence[int]) -> str:
    whole = len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]}-{numbers[-1]}" if whole else ",".join(map(str, numbers))


def nearest(name: object, names: Sequence[str]) -> str:
    """`", did you mean 'x_BLD'?"` for the likeliest of `names`, "" if none is like `name`.

    Upper and lower case are alike, and so are a word and one that begins with it: x and x_BLD.
    """
    name = str(name)
    known = {other.lower(): other for other in reversed(names) if other != name}
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    close = close or [other for other in known if name and other.startswith(name.lower())][:1]
    return f", did you mean {known[close[0]]!r}?" if close else ""


def either(values: Iterable[object]) -> str:
    """`1, 2, 4 or 8`: any of them will do."""
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}" if first else last


def install(extra: str) -> str:
    """How to install what an extra has."""
    return f"pip install -e '.[{extra}]' in a clone of meshwright, else pip install 'meshwright[{extra}]'"


def nearest_path(path: str) -> str:
    """`", did you mean 'books/one.txt'?"` for a file or folder that is there and has nearly the name of `path`, which
    is not; "" if there is none. What comes behind the name that is wrong is kept.
    """
    missing = Path(os.path.abspath(path))
    rest = Path()
    while not missing.parent.exists():
        missing, rest = missing.parent, missing.name / rest
    try:
        names = os.listdir(missing.parent)
    except OSError:
        return ""
    found = [(likeness, name) for name in names if (likeness := _likeness(missing.name, name)) >= _NEAR]
    if not found:
        return ""
    meant = missing.with_name(max(found)[1])
    meant = meant / rest if (meant / rest).exists() else meant
    shown = str(meant) if os.path.isabs(path) else os.path.relpath(meant)
    return f", did you mean {shown!r}?"


def _likeness(one: str, other: str) -> tuple[float, float]:
    """Of the names without what follows the last dot, then of that."""
    parts = zip(os.path.splitext(one.lower()), os.path.splitext(other.lower()), strict=True)
    stem, suffix = (difflib.SequenceMatcher(None, *pair).ratio() for pair in parts)
    return stem, suffix


_NEAR: Final = (0.75, 0.0)

"""What a check has found: problems, and what the author asked to take on trust."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import Problem, SpmdTypeError


@dataclass(frozen=True)
class Call:
    """name of the function; static: what Python gave it besides tensors; line: where."""

    name: str
    static: tuple[Any, ...]
    line: str

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.static))})"


@dataclass(frozen=True)
class Trusted:
    """where: the source line; what: what is taken on trust there; reason: the author's, "" where none is given."""

    where: str
    what: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f" ({self.reason})" if self.reason else "")


@dataclass
class Report:
    """problems: in the order in which they were met. claims: values read as another type than the rules know them by,
    V as P or as S(i). unchecked: blocks that nobody judged.
    """

    problems: list[Problem] = field(default_factory=list)
    claims: list[Trusted] = field(default_factory=list)
    unchecked: list[Trusted] = field(default_factory=list)

    def add(self, problem: Problem) -> None:
        """Note a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def trust(self, kind: list[Trusted], item: Trusted) -> None:
        """Note what is taken on trust, once."""
        if item not in kind:
            kind.append(item)

    def demand_none(self) -> None:
        """Errors: `SpmdTypeError` with all problems, if there are any."""
        if self.problems:
            raise SpmdTypeError(self.problems)

    def __str__(self) -> str:
        lines = [str(SpmdTypeError(self.problems))] if self.problems else ["no problem"]
        for title, items in (("taken on trust", self.claims), ("not judged", self.unchecked)):
            if items:
                lines += [f"{title}:", *(f"  {item}" for item in items)]
        return "\n".join(lines)

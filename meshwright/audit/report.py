"""What an audit found: problems, and the collectives of a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from meshwright.check.report import Trusted
from meshwright.codes import Code
from meshwright.errors import Problem, alike_together


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One kind of collective at one place, in one optimizer step.

    module: whose it is, or "optimizer"; what: of it. axis: over which ranks. forward, backward: what is called in each,
    "" for nothing. count: how often. sent_forward, sent_backward: bytes that one rank sends over the network in all of
    them, by the ring algorithms.
    """

    module: str
    what: str
    axis: str
    forward: str
    backward: str
    count: int
    sent_forward: int
    sent_backward: int


@dataclass
class Report:
    """mesh: the degrees in words; ranks: with what they make; world: number of ranks; ep: of those that hold different
    experts; stages: those of a pipeline; uncounted: what is sent and does not stand in traffic; judged: the ranks whose
    step was followed.

    typed: whether the types of a whole step were judged; not so where the arithmetic is wrong already. trusted: what no
    rule sees and the declarations say, `where` being the module.
    """

    recipe: str
    mesh: str = ""
    ranks: str = ""
    world: int = 0
    ep: int = 1
    stages: int = 1
    uncounted: str = ""
    judged: tuple[int, ...] = ()
    typed: bool = False
    trusted: list[Trusted] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def add(self, problems: Iterable[Problem]) -> None:
        """Note problems, each once; of those at one place with one fix the first."""
        for problem in problems:
            alike = [each for each in self.problems if each.where == problem.where and each.fix == problem.fix]
            if problem not in self.problems and not (alike and problem.fix):
                self.problems.append(problem)

    @property
    def believed(self) -> list[Trusted]:
        """What is taken on trust, that of repeated layers as one."""
        alike = alike_together([Problem(where=f"{one.where}.", what=one.what, why=one.reason) for one in self.trusted])
        return [Trusted(one.where[:-1], one.what, one.why) for one in alike]

    @property
    def known(self) -> list[Problem]:
        """The problems without those that say only that nothing is known of an op."""
        return [problem for problem in self.problems if problem.code is not Code.NO_RULE]

    @property
    def told(self) -> list[Problem]:
        """The problems, those of repeated layers as one."""
        return alike_together(self.problems)


def folded(rows: Iterable[Traffic]) -> list[Traffic]:
    """Rows that differ in the number of a layer alone become one, their counts and bytes added."""
    kinds: dict[tuple[str, ...], list[Traffic]] = {}
    for row in rows:
        kinds.setdefault((_pattern(row.module), row.what, row.axis, row.forward, row.backward), []).append(row)
    return [
        replace(
            alike[0],
            module=alike_together([Problem(where=f"{row.module}.", what="") for row in alike])[0].where[:-1],
            count=sum(row.count for row in alike),
            sent_forward=sum(row.sent_forward for row in alike),
            sent_backward=sum(row.sent_backward for row in alike),
        )
        for alike in kinds.values()
    ]


def _pattern(module: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in module.split("."))

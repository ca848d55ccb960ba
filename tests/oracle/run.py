"""All draws of one sample, judged."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from meshwright.types.layout import SpmdLayout
from tests.oracle.drawn import LINE, SQUARE, WIDE, Kinds, on_grid, on_line
from tests.oracle.flattened import flattened
from tests.oracle.judge import Case, Lie, Verdict, accepted, judged
from tests.oracle.sample import Sample


@dataclass(frozen=True)
class Effort:
    """line: draws on one axis that are judged, of which at most two thirds are accepted ones; probed: draws that are
    looked through for accepted ones; grid: draws on each mesh of two axes."""

    line: int
    probed: int
    grid: int

    @property
    def less(self) -> Effort:
        """For variants of what is judged in full."""
        return Effort(max(self.line // 4, 2), max(self.probed // 4, 4), self.grid // 4)


FULL = Effort(line=60, probed=400, grid=12)
QUICK = Effort(line=4, probed=9, grid=1)


@dataclass
class Tally:
    """How often which verdict was given."""

    accepted: int = 0
    refused: int = 0
    needless: list[str] = field(default_factory=list)
    lies: list[str] = field(default_factory=list)

    @property
    def draws(self) -> int:
        """All calls that were judged."""
        return self.accepted + self.refused + len(self.needless) + len(self.lies)

    @property
    def counts(self) -> tuple[str, ...]:
        """Accepted, refused, refused needlessly, lies."""
        return tuple(map(str, (self.accepted, self.refused, len(self.needless), len(self.lies))))

    def merge(self, other: Tally) -> None:
        """Count what another counted too."""
        self.accepted += other.accepted
        self.refused += other.refused
        self.needless += other.needless
        self.lies += other.lies

    def add(self, case: Case) -> None:
        """Judge the case and count it."""
        try:
            verdict = judged(case)
        except Lie as lie:
            self.lies.append(str(lie))
            return
        if verdict is Verdict.ACCEPTED:
            self.accepted += 1
        elif verdict is Verdict.REFUSED:
            self.refused += 1
        else:
            self.needless.append(str(case))


def proven(samples: Iterable[Sample], effort: Effort) -> Tally:
    """Judge samples, and less of them with operands that were flattened."""
    total = Tally()
    for each in samples:
        total.merge(tallied(each, effort))
        variant = flattened(each)
        if variant is not None:
            total.merge(tallied(variant, effort.less))
    return total


def tallied(sample: Sample, effort: Effort) -> Tally:
    """Judge the draws of a sample."""
    tally = Tally()
    for case in cases(sample, effort):
        tally.add(case)
    return tally


def cases(sample: Sample, effort: Effort) -> Iterator[Case]:
    """On one axis, then on both."""
    wants = _wants(sample)
    fits: list[Kinds] = []
    others: list[Kinds] = []
    for each in on_line(sample)[: effort.probed]:
        (fits if accepted(Case(sample, _line(each), next(wants), LINE)) else others).append(each)
    chosen = fits[: effort.line * 2 // 3]
    for each in (*chosen, *others[: effort.line - len(chosen)]):
        yield Case(sample, _line(each), next(wants), LINE)
    for dims in (SQUARE, WIDE):
        for layouts in on_grid(sample, fits, dims, effort.grid):
            yield Case(sample, tuple(layouts), next(wants), dims)


def _line(kinds: Sequence[object]) -> tuple[SpmdLayout, ...]:
    return tuple(SpmdLayout({"tp": kind}) for kind in kinds)


def _wants(sample: Sample) -> Iterator[tuple[bool, ...]]:
    """Mostly every operand that may want a gradient does."""
    seeded = random.Random(f"wants {sample}")
    may = [each.wants for each in sample.inputs]
    while True:
        some = seeded.random() < 0.3
        yield tuple(each and (not some or seeded.random() < 0.5) for each in may)

"""What came of all mutants, in figures, and whether that is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tests.mutants.run import Outcome
from tests.mutants.truth import Truth

LEAST_CHANGING: Final = 0.55
"""Share of all mutants that are to change something: of the others nothing can be reported."""
LEAST_REPORTED: Final = 0.98
"""Share of the mutants that change something."""
LEAST_NAMED: Final = 0.95
"""Share of the reported ones, of faults that are about an axis."""


@dataclass(frozen=True)
class Tally:
    """Some outcomes."""

    all: tuple[Outcome, ...]

    @property
    def changing(self) -> tuple[Outcome, ...]:
        return tuple(one for one in self.all if one.truth is Truth.CHANGES)

    @property
    def reported(self) -> tuple[Outcome, ...]:
        return tuple(one for one in self.changing if one.reported)

    @property
    def escaped(self) -> tuple[Outcome, ...]:
        return tuple(one for one in self.changing if not one.reported)

    @property
    def about_an_axis(self) -> tuple[Outcome, ...]:
        return tuple(one for one in self.reported if one.mutant.axes)

    @property
    def named(self) -> tuple[Outcome, ...]:
        return tuple(one for one in self.about_an_axis if one.named)

    @property
    def counts(self) -> tuple[str, ...]:
        """As the columns of the table: see `COLUMNS`."""
        kinds = (Truth.EQUIVALENT, Truth.OTHER, Truth.REFUSED)
        of = [sum(one.truth is kind for one in self.all) for kind in kinds]
        first = sum(one.named_first for one in self.about_an_axis)
        named = (len(self.about_an_axis), len(self.named), first)
        figures = (len(self.all), *of, len(self.changing), len(self.reported))
        return tuple(map(str, (*figures, *named)))

    @property
    def enough(self) -> bool:
        """Whether as many are reported, and under the right axis, as must be."""
        return len(self.reported) >= LEAST_REPORTED * len(self.changing) and len(self.named) >= LEAST_NAMED * len(
            self.about_an_axis
        )


COLUMNS: Final = ("mutants", "equal", "other", "any run", "changing", "reported", "axis", "named", "first")
LEGEND: Final = (
    "equal, other: right programs still, of the same or of something else; any run: computes nothing, refused without "
    "a check; "
    "axis: reported ones of a fault that is about an axis; named: it is, in some problem; first: in the first problem"
)


def by(key: Callable[[Outcome], str], outcomes: Iterable[Outcome]) -> dict[str, Tally]:
    """A tally for each key."""
    found: dict[str, list[Outcome]] = {}
    for one in outcomes:
        found.setdefault(key(one), []).append(one)
    return {name: Tally(tuple(those)) for name, those in found.items()}

"""One layout on one backend, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from meshwright.errors import Problem
from meshwright.parity.compare import Off
from meshwright.parity.laws import Law


class Verdict(Enum):
    """OK: as one device. OFF: not. NONE: the model has no such layout. REFUSED: what is declared is no layout.
    FAILED: the step ended in an error."""

    OK = "ok"
    OFF = "off"
    NONE = "none"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True)
class Cell:
    """error: the largest relative one, where there was a step; off: what differs, the loss first; law: of the last of
    `off`; problems: why there was no step."""

    layout: str
    backend: str
    verdict: Verdict
    error: float | None = None
    off: tuple[Off, ...] = ()
    law: Law | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def right(self) -> bool:
        """Whether nothing is wrong with the recipe here."""
        return self.verdict in (Verdict.OK, Verdict.NONE)


@dataclass(frozen=True)
class Matrix:
    """recipe: its name; ranks: "processes" or "simulated"; rows: one a layout, one cell a backend."""

    recipe: str
    ranks: str
    backends: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def cells(self) -> list[Cell]:
        """Row by row."""
        return [cell for row in self.rows for cell in row]

    @property
    def compared(self) -> list[Cell]:
        """Those in which a step was compared."""
        return [cell for cell in self.cells if cell.error is not None]

    @property
    def right(self) -> bool:
        """Whether some layout was compared, and nothing is wrong in any."""
        return bool(self.compared) and all(cell.right for cell in self.cells)

"""Faults that change what is computed and are not reported, and why the checker does not see them."""

from __future__ import annotations

from typing import Final

from tests.mutants.run import Outcome

_TORCH: Final = "torch itself ends the check with its error, as it would end the run"
_LENGTH: Final = "int() of a local length is a plain number, the same on every rank: nothing tells it from another"
_CLAIM: Final = "V -> P is the author's claim: nobody looks whether each value counts once; it is listed in the report"

REASONS: Final = {
    "local length for global": (("int(",), _LENGTH),
    "local length for spmd.size": (("int(",), _LENGTH),
    "mask dropped": (("picked = picked", "y = y"), _CLAIM),
    "number of ranks dropped": (("mean()",), _CLAIM),
    "factor of the rank": (("tanh",), _CLAIM),
}
"""Kind of fault -> parts of the sources of those that escape, and the reason."""

REFUSED: Final[dict[str, str]] = {}
"""Right program -> why it is refused all the same."""


def reason(one: Outcome) -> str | None:
    """Why a fault is not reported; None where nothing is said of it."""
    if one.broke:
        return _TORCH if one.broke.startswith(f"{one.shows}:") else None
    parts, why = REASONS.get(one.mutant.operator, ((), None))
    return why if any(part in one.mutant.source for part in parts) else None

"""Faults that change what is computed and are not reported, and why the checker does not see them."""

from __future__ import annotations

from typing import Final

from tests.mutants.run import Outcome

_TORCH: Final = "torch itself ends the check with its error, as it would end the run"
_LENGTH: Final = (
    "a local length as a plain number, or in a tensor, is the same on every rank: nothing tells it from another"
)
_HOOK: Final = "what a hook does to a gradient in backward is not judged: it is taken to be what autograd makes of it"
_SIZE: Final = (
    "without its axes spmd.size is known to the checker alone: it is accepted, and refused in a run that nobody checks"
)
_ADJOINT: Final = "values of a backward are not followed where ranks exchange something: only its types are"
_CLAIM: Final = "V -> P is the author's claim: nobody looks whether each value counts once; it is listed in the report"
_CUT: Final = "local mode does not follow which dim is cut"

REASONS: Final = {
    "gradient changed in a hook": (("register_hook",), _HOOK),
    "local length for global": (("int(", "float(", "len(", "torch.tensor("), _LENGTH),
    "local length for spmd.size": (("int(", "float(", "torch.tensor("), _LENGTH),
    "length as the checker has it": (("spmd.size(",), _SIZE),
    "wrong backward": (("return 2 * ", "return -"), _ADJOINT),
    "mask dropped": (("picked = picked", "y = y"), _CLAIM),
    "number of ranks dropped": (("mean()",), _CLAIM),
    "factor of the rank": (("tanh",), _CLAIM),
    "other dim": (("all_gather(h",), _CUT),
}
"""Kind of fault -> parts of the sources of those that escape, and the reason."""

REFUSED: Final = {
    "reduced_in_a_hook": "what a hook does to .grad in backward is not judged: the gradient is taken to be P still"
}
"""Right program -> why it is refused all the same."""


def reason(one: Outcome) -> str | None:
    """Why a fault is not reported; None where nothing is said of it."""
    if one.broke:
        return _TORCH if one.broke.startswith(f"{one.shows}:") else None
    parts, why = REASONS.get(one.mutant.operator, ((), None))
    return why if any(part in one.mutant.source for part in parts) else None

"""Every sample; each op that has a pure rule has one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from meshwright.check.rule import INFER, RULES, Pure
from tests.oracle.sample import Sample
from tests.oracle.samples_algebra import LINEAR_ALGEBRA, SPECTRA
from tests.oracle.samples_constants import CONSTANTS
from tests.oracle.samples_experts import EXPERTS
from tests.oracle.samples_flex import FLEX
from tests.oracle.samples_foreach import LISTS
from tests.oracle.samples_layers import IMAGES, LOSSES, NORMS
from tests.oracle.samples_matmul import MATMUL
from tests.oracle.samples_pointwise import POINTWISE
from tests.oracle.samples_reduce import REDUCE
from tests.oracle.samples_view import VIEW

SAMPLES: Final[tuple[Sample, ...]] = (
    *POINTWISE,
    *MATMUL,
    *FLEX,
    *EXPERTS,
    *CONSTANTS,
    *REDUCE,
    *VIEW,
    *NORMS,
    *LOSSES,
    *IMAGES,
    *LINEAR_ALGEBRA,
    *SPECTRA,
    *LISTS,
)

UNSAMPLED: Final[Mapping[str, str]] = {
    "cuda": "wants a device; `to` is the same rule",
    "type": "`to` is the same rule",
}
"""Op with a rule -> why there is no sample of it."""


def ruled() -> set[str]:
    """The names of all ops that have a pure rule; a form in place goes with its op."""
    return set(INFER) | {base(rule.name) for rule in RULES.values() if isinstance(rule, Pure)}


def base(name: str) -> str:
    """The op of which `name` is a form in place."""
    return name if name.startswith("__") else name.removesuffix("_")


def by_op() -> dict[str, list[Sample]]:
    """Op -> its samples."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for each in SAMPLES:
        found[base(each.op)].append(each)
    return dict(found)

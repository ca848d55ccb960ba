"""Which numbers a recipe may say: one table for `train`, `check` and the ranks."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from meshwright.errors import Problem
from meshwright.train.config import TrainConfig
from meshwright.train.data.config import check as data_problems

MOST: Final = 1_000_000_000
"""Of anything that a run counts."""
MOST_TOKENS: Final = 10_000_000
"""In a sequence, and sequences in a batch: shapes of more are none that torch can count."""
MOST_PROCESSES: Final = 4096
"""On one machine."""
GREATEST: Final = 2**63 - 1
"""The greatest whole number that a tensor holds."""


@dataclass(frozen=True)
class Range:
    """kind: int, or float for both; low and high: the least and the greatest; above, below: they are not in it."""

    kind: type
    low: float
    high: float
    why: str = ""
    above: bool = False
    below: bool = False

    def holds(self, value: object) -> bool:
        """Whether it is such a number. One that is none, nan, is in no range."""
        kinds = (int,) if self.kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return False
        if isinstance(value, int) and abs(value) > GREATEST:  # no tensor can hold it
            return False
        return (self.low < value if self.above else self.low <= value) and (
            value < self.high if self.below else value <= self.high
        )

    def __str__(self) -> str:
        if self.low == -math.inf:
            return "a whole number" if self.kind is int else "a number"
        low = f"above {self.low}" if self.above else f"from {self.low}"
        if self.high == math.inf:
            return low
        return f"{low} {'to below' if self.below else 'to'} {self.high}"


_WHOLE: Final = Range(int, -math.inf, math.inf)
_COUNT: Final = Range(int, 1, MOST)
_NONE_OR_MORE: Final = Range(int, 0, MOST)
_FINITE: Final = Range(float, 0, MOST)
_MEAN: Final = Range(float, 0, 1, "a running mean keeps this share", below=True)
RANGES: Final[Mapping[str, Range]] = {
    "compute.loss_chunks": _COUNT,
    "training.steps": _COUNT,
    "training.length": Range(int, 2, MOST_TOKENS),
    "training.batch": Range(int, 1, MOST_TOKENS),
    "training.accumulate": Range(int, 1, MOST_TOKENS),
    "training.max_norm": Range(float, 0, math.inf, "nothing would be learned", above=True),
    "training.validate_every": _COUNT,
    "training.validation_batches": _NONE_OR_MORE,
    "training.seed": Range(int, 0, GREATEST),
    "optimizer.rate": _FINITE,
    "optimizer.warmup": _NONE_OR_MORE,
    "optimizer.floor": Range(float, 0, 1, "it is a share of the rate after warm-up"),
    "optimizer.beta1": _MEAN,
    "optimizer.beta2": _MEAN,
    "optimizer.epsilon": Range(float, 0, MOST, above=True),
    "optimizer.weight_decay": _FINITE,
    "checkpoint.every": _NONE_OR_MORE,
    "checkpoint.keep": _COUNT,
    "data.vocab": _WHOLE,
    "data.validation": Range(float, -math.inf, math.inf),
    "data.seed": _WHOLE,
    "launch.processes": Range(int, 1, MOST_PROCESSES),
    "launch.threads": Range(int, 1, MOST_PROCESSES),
}
"""Field -> its numbers. Those of `data` are narrower, see `train/data/config.py`; degrees are `ParallelismDims`', and a
model knows its own."""
_OPTIONAL: Final = frozenset({"launch.processes"})


def problems(config: TrainConfig) -> list[Problem]:
    """The numbers that no run can have, whatever the others are."""
    wrong = [
        Problem(where=name, what=f"{value!r}", why=RANGES[name].why, fix=f"--{name.replace('_', '-')} {RANGES[name]}")
        for name, value in _values(config).items()
        if not RANGES[name].holds(value) and not (value is None and name in _OPTIONAL)
    ]
    readable = not any(problem.where.startswith("data.") for problem in wrong)
    return [*wrong, *data_problems(config.data)] if readable else wrong


def _values(config: TrainConfig) -> dict[str, Any]:
    return {name: operator.attrgetter(name)(config) for name in RANGES}


def mended(config: TrainConfig) -> TrainConfig:
    """The recipe with the default in place of each number that no run can have, so that all else can be judged."""
    for problem in problems(config):
        section, _, name = problem.where.partition(".")
        held = getattr(config, section)
        default = next(field.default for field in fields(held) if field.name == name)
        config = replace(config, **{section: replace(held, **{name: default})})
    return config

"""Repeated blocks are judged twice and not a hundred times.

Of a run of blocks with equal configs two are kept: the first takes what stands before the run, the second what a block
of the run hands on. Every further one would take the same and be judged the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from meshwright.errors import Problem
from meshwright.models.decoder import Decoder
from meshwright.train.assemble import declared
from meshwright.train.config import TrainConfig
from meshwright.train.loss import CrossEntropy

BLOCK: Final = re.compile(r"^blocks\.(\d+)")
"""The beginning of a path inside a block, with its number."""


@dataclass(frozen=True)
class Condensed:
    """A model on meta with global shapes, and for each of its blocks those of the run that it stands for.

    loss: None where the head has it in itself.
    """

    model: Decoder
    loss: CrossEntropy | None
    stands_for: Sequence[range]

    def places(self, path: str) -> list[str]:
        """The paths in the run of what is `path` here; `path` may go on with a field or a line."""
        found = BLOCK.match(path)
        if found is None:
            return [path]
        return [f"blocks.{number}{path[found.end() :]}" for number in self.stands_for[int(found[1])]]

    def spread(self, problem: Problem) -> list[Problem]:
        """The problem at each of its places in the run."""
        return [replace(problem, where=where) for where in self.places(problem.where)]


def condensed(config: TrainConfig) -> Condensed:
    """Errors: `ConfigError` where `layouts` of the recipe fails."""
    modules, loss = declared(config)
    stands_for = runs(modules.blocks)
    modules.blocks = [modules.blocks[numbers.start] for numbers in stands_for]
    with torch.device("meta"):
        return Condensed(modules.build(), loss.build() if loss is not None else None, stands_for)


def runs(blocks: Sequence[Any]) -> list[range]:
    """The blocks that are kept, each with the numbers of those that it stands for."""
    found: list[range] = []
    for number, block in enumerate(blocks):
        start = found[-1].start if found else 0
        again = len(found) > 1 and blocks[start] == block == blocks[found[-2].start]
        if again:
            found[-1] = range(start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found

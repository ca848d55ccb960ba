"""The small run in which a layout is tried: few blocks, few rows, short sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from meshwright.parity.batch import unequal_batch
from meshwright.train.config import ComputeConfig, ParallelConfig, TrainConfig, TrainingConfig
from meshwright.train.data import Batch
from meshwright.train.stages import ORDERS

ACCUMULATE: Final = 3
"""Micro-batches of a step: more than two, and no degree in common use."""
BLOCKS, ROWS, LENGTH = 2, 4, 16
"""What a run has at least, where the model has as many blocks."""
EPSILON: Final = 1e-5
"""At least, beside the root of Adam's mean square: an element whose gradient is rounding alone would else move by the
whole rate either way, on one device too."""


@dataclass(frozen=True)
class Shapes:
    """blocks: at most; rows: of a micro-batch, over all ranks; length: tokens of a row; vocab: of the small model."""

    blocks: int
    rows: int
    length: int
    vocab: int

    @classmethod
    def of(cls, config: TrainConfig, layout: ParallelConfig) -> Shapes:
        """What a layout and the chunks of the loss divide, and what fills its pipeline."""
        ranks = layout.dp_replicate * layout.dp_shard
        parts = math.lcm(2 * layout.cp * layout.tp, layout.cp * config.compute.loss_chunks)
        stages = layout.pp * ORDERS[layout.schedule].per_rank if layout.pp > 1 else 1
        return cls(
            blocks=max(BLOCKS, stages - 2),
            rows=_up(ROWS, ranks * max(1, layout.filling)),
            length=_up(LENGTH, parts),
            vocab=config.model.small().vocab,
        )

    @cached_property
    def batches(self) -> Sequence[Batch]:
        """The micro-batches of a step, of all ranks."""
        return [unequal_batch(self.vocab, self.rows, self.length, seed) for seed in range(ACCUMULATE)]

    def shrunk(self, config: TrainConfig, layout: ParallelConfig) -> TrainConfig:
        """The recipe's run under a layout, small, in float32."""
        whole = {"compile": False, "precision": "float32", "reduce_precision": "float32"}
        if layout.dp_replicate * layout.dp_shard == 1:  # nothing is stored that could be gathered anew
            whole["reshard"] = "auto"
        compute: ComputeConfig = replace(config.compute, **whole)  # type: ignore[arg-type]
        training = TrainingConfig(
            steps=10, length=self.length, batch=self.rows * ACCUMULATE, accumulate=ACCUMULATE, seed=7
        )
        optimizer = replace(config.optimizer, epsilon=max(config.optimizer.epsilon, EPSILON))
        model = config.model.small(self.blocks)
        return replace(config, model=model, parallel=layout, compute=compute, training=training, optimizer=optimizer)


def _up(least: int, of: int) -> int:
    """The smallest multiple of `of` from `least` on."""
    return math.ceil(least / of) * of

"""The same step on real processes over gloo, parameters stored by FSDP."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.parity.outcome import Part
from meshwright.parity.step import process_part
from meshwright.train.config import TrainConfig
from meshwright.train.data import Batch
from tests.parity.harness import Outcome, together
from tests.processes import ranks


def on_processes(configs: Sequence[TrainConfig], batches: Sequence[Batch], world: int) -> list[Outcome]:
    """The outcome of each of `configs`, all of `world` ranks."""
    parts = ranks(world).run(_parts, configs, batches)
    return [together([part[i] for part in parts]) for i in range(len(configs))]


def _parts(rank: int, configs: Sequence[TrainConfig], batches: Sequence[Batch]) -> list[Part]:
    """This rank's part of each outcome."""
    return [process_part(rank, config, batches) for config in configs]

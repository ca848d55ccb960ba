"""The same case on every backend: configs for one group of processes, and runs with frozen parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from meshwright.parity.outcome import Part
from meshwright.parity.step import process_part
from meshwright.train import assemble
from meshwright.train.config import TrainConfig
from meshwright.train.data import Batch
from tests.parity.harness import Outcome, laid_out, one_device, small, together
from tests.processes import ranks

BACKENDS: Final = ("spmd_types", "full_dtensor", "partial_dtensor")


def everywhere(config: TrainConfig, layouts: Sequence[Mapping[str, Any]]) -> list[TrainConfig]:
    """Each layout on each backend."""
    return [laid_out(config, backend=backend, **layout) for layout in layouts for backend in BACKENDS]


def deep(**numbers: Any) -> TrainConfig:
    """Layers for two stages a rank, and rows for many micro-batches."""
    config = small(layers=4, **numbers)
    return replace(config, training=replace(config.training, batch=8))


@contextmanager
def frozen(pattern: str) -> Iterator[None]:
    """Models that are put together in the block have the parameters frozen whose names match."""
    whole = assemble.on_meta

    def with_frozen(config: TrainConfig) -> Any:
        model, loss = whole(config)
        for name, param in model.named_parameters():
            if re.match(pattern, name):
                param.requires_grad_(False)
        return model, loss

    with patch.object(assemble, "on_meta", with_frozen):
        yield


def alone_frozen(config: TrainConfig, batches: Sequence[Batch], pattern: str) -> Outcome:
    with frozen(pattern):
        return one_device(config, batches)


def on_processes_frozen(
    configs: Sequence[TrainConfig], batches: Sequence[Batch], world: int, pattern: str
) -> list[Outcome]:
    parts = ranks(world).run(_frozen_parts, configs, batches, pattern)
    return [together([part[i] for part in parts]) for i in range(len(configs))]


def _frozen_parts(rank: int, configs: Sequence[TrainConfig], batches: Sequence[Batch], pattern: str) -> list[Part]:
    with frozen(pattern):
        return [process_part(rank, config, batches) for config in configs]

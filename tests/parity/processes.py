"""The same step on real processes over gloo, parameters stored by FSDP."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from meshwright.train.assemble import assemble, processes_backend, run_dims
from meshwright.train.config import TrainConfig
from meshwright.train.data import Batch
from meshwright.train.trainer import split_rows
from tests.parity.harness import Outcome, Part, rows, step_part, together
from tests.processes import ranks


def on_processes(configs: Sequence[TrainConfig], batches: Sequence[Batch], world: int) -> list[Outcome]:
    """The outcome of each of `configs`, all of `world` ranks."""
    parts = ranks(world).run(_parts, configs, batches)
    return [together([part[i] for part in parts]) for i in range(len(configs))]


def _parts(rank: int, configs: Sequence[TrainConfig], batches: Sequence[Batch]) -> list[Part]:
    """This rank's part of each outcome."""
    parts = []
    for config in configs:
        backend, everyone = processes_backend(run_dims(config), rank, "cpu", config.parallel.backend, config.compute)
        run = assemble(config, backend, everyone, torch.device("cpu"))
        dp = backend.view["dp"]
        own = [rows(batch, dp.index, dp.size) for batch in batches]
        filling = config.parallel.filling
        parts.append(step_part(run, [micro for batch in own for micro in split_rows(batch, filling)]))
    return parts

"""The same step on real processes over gloo: one group of processes, many layouts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from meshwright.train.assemble import assemble, processes_backend, run_dims
from meshwright.train.config import TrainConfig
from meshwright.train.data import Batch
from tests.parity.harness import Outcome, Part, rows, step_part, together


def on_processes(configs: Sequence[TrainConfig], batches: Sequence[Batch], world: int) -> list[Outcome]:
    """The outcome of each of `configs`, all of `world` ranks."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_rank, (world, configs, batches, folder), nprocs=world)
        parts = [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(world)]
    return [together([part[i] for part in parts]) for i in range(len(configs))]


def _rank(rank: int, world: int, configs: Sequence[TrainConfig], batches: Sequence[Batch], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    parts: list[Part] = []
    for config in configs:
        dims = run_dims(config)
        backend, everyone = processes_backend(dims, rank, "cpu")
        run = assemble(config, backend, everyone, torch.device("cpu"))
        dp = backend.view["dp"]
        parts.append(step_part(run, [rows(batch, dp.index, dp.size) for batch in batches]))
    torch.save(parts, Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo may hold a tensor for longer than the interpreter lives

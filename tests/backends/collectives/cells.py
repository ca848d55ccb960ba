"""Layout and backend of each file, and the step that is recorded for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from meshwright.comm.grid import ParallelismDims
from meshwright.core.module import Module
from meshwright.parity.step import on_process, own_batches
from meshwright.train.assemble import run_dims
from meshwright.train.config import TrainConfig
from meshwright.train.loss import roots
from meshwright.train.step import train_step
from tests.backends.collectives.record import Called, recorded
from tests.parity.experts import small_experts
from tests.parity.harness import MAX_NORM, RATE, global_batch, laid_out, small

BACKENDS: Final = ("spmd_types", "full_dtensor", "partial_dtensor")
OF_EIGHT: Final[Mapping[str, Mapping[str, Any]]] = {
    "dp2_tp4": {"dp_shard": 2, "tp": 4},
    "dp2_tp4_whole_sequence": {"dp_shard": 2, "tp": 4, "sequence_parallel": False},
    "dp2_cp2_tp2": {"dp_shard": 2, "cp": 2, "tp": 2},
    "hsdp2x2_tp2": {"dp_replicate": 2, "dp_shard": 2, "tp": 2},
    "tp8_of_4_kv_heads": {"tp": 8},
}
"""Recorded under a fake process group: one process, and nothing is sent."""
PIPELINES: Final[Mapping[str, Mapping[str, Any]]] = {
    "pp2_tp2": {"pp": 2, "tp": 2, "micro_batches": 2},
    "pp2_dp2": {"pp": 2, "dp_shard": 2, "micro_batches": 2},
}
"""Recorded on 4 processes, since a stage waits for what another computes: the first rank of each stage."""
EXPERTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "qwen3_moe_dp2_tp2_ep4": ("qwen3", {"dp_replicate": 2, "dp_shard": 2, "tp": 2, "ep": 4}),
    "deepseek_v3_dp2_cp2_tp2_ep4": ("deepseek", {"dp_shard": 2, "cp": 2, "tp": 2, "ep": 4}),
}
"""A small model with experts, and the layout; as `OF_EIGHT`, with tokens dealt evenly."""
FOLDER: Final = Path(__file__).parent
REGENERATE: Final = "python -m tests.backends.collectives"


@dataclass(frozen=True)
class Cell:
    """One file."""

    layout: str
    backend: str

    @property
    def file(self) -> Path:
        return FOLDER / self.layout / f"{self.backend}.txt"

    @property
    def config(self) -> TrainConfig:
        if self.layout in EXPERTS:
            family, layout = EXPERTS[self.layout]
            return laid_out(small_experts(family), backend=self.backend, **layout)
        return laid_out(small(), backend=self.backend, **(OF_EIGHT | PIPELINES)[self.layout])

    @property
    def dims(self) -> ParallelismDims:
        return run_dims(self.config)


def step_of(rank: int, cell: Cell) -> tuple[list[Module], Callable[[], object]]:
    """What is called in a step of this rank, and the step, in a process group of `cell.dims.world` ranks."""
    config = cell.config
    run = on_process(rank, config)
    micro = own_batches(run, config, [global_batch(config)])

    def step() -> object:
        return train_step(run, micro, step=1, rate=RATE, max_norm=MAX_NORM)

    return roots(run.model, run.loss), step


def calls_of(rank: int, cell: Cell) -> Counter[Called]:
    """The collectives of the second step of this rank."""
    modules, step = step_of(rank, cell)
    return recorded(modules, cell.dims, step)


def text_of(cell: Cell, stages: Iterable[Mapping[Called, int]]) -> str:
    """The file: one line for each collective, by stage of the pipeline."""
    header = f"Collectives of one training step on {cell.dims}, backend {cell.backend}; `{REGENERATE}` wrote this."
    lines = [header, "Bytes are what the first rank sends in one call; blocks are taken together."]
    for number, calls in enumerate(stages):
        columns = [("module", "pass", "op", "axis", "bytes", "times")]
        columns += sorted(
            (each.module, each.way, each.op, each.axis, str(each.size), str(times)) for each, times in calls.items()
        )
        widths = [max(len(row[place]) for row in columns) for place in range(len(columns[0]))]
        lines += ["", f"stage {number}"] if cell.dims.pp > 1 else [""]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in columns
        ]
    return "\n".join(lines) + "\n"

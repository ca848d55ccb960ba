"""One training step of a small run: on one device, on a rank of its own process, on simulated ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from meshwright.comm.grid import DENSE, WORLD, ParallelismDims
from meshwright.comm.scope import View, current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.comm.transport import Alone
from meshwright.parity.batch import rows_of
from meshwright.parity.outcome import Outcome, Part, step_part, together
from meshwright.parity.shapes import Shapes
from meshwright.train.assemble import Assembly, assemble, connect, local_backend, run_dims
from meshwright.train.config import ParallelConfig, TrainConfig
from meshwright.train.data import Batch
from meshwright.train.trainer import split_rows

CPU = torch.device("cpu")


def one_device(config: TrainConfig) -> Assembly:
    """A run of degrees 1, whatever its config says."""
    backend = local_backend(ParallelismDims(), 0, View({axis: Alone(axis) for axis in DENSE}))
    return assemble(config, backend, Alone("world"), CPU)


def alone(config: TrainConfig, shapes: Shapes, batches: Sequence[Batch] | None = None) -> Outcome:
    """A step of the small run on one device."""
    run = one_device(shapes.shrunk(config, ParallelConfig()))
    return together([step_part(run, shapes.batches if batches is None else batches)])


def on_process(rank: int, config: TrainConfig) -> Assembly:
    """This process's run."""
    backend, everyone = connect(config, rank, "cpu")
    return assemble(config, backend, everyone, CPU)


def process_part(rank: int, config: TrainConfig, batches: Sequence[Batch]) -> Part:
    """This process's part of a step; batches: of all ranks."""
    run = on_process(rank, config)
    return step_part(run, own_batches(run, config, batches))


def thread_parts(config: TrainConfig, batches: Sequence[Batch]) -> list[Part]:
    """Every rank's part of a step on simulated ranks, which know no pipeline."""
    dims = run_dims(config)

    def rank_part(rank: int) -> Part:
        view = current_mesh()
        assert view is not None
        run = assemble(config, local_backend(dims, rank, view), view["world"], CPU)
        return step_part(run, own_batches(run, config, batches))

    return run_ranks(dims, rank_part, {**dims.compute, **WORLD})


def own_batches(run: Assembly, config: TrainConfig, batches: Sequence[Batch]) -> list[Batch]:
    """The micro-batches of this data rank, cut as its pipeline wants them."""
    dp = run.backend.view["dp"]
    own = [rows_of(batch, dp.index, dp.size) for batch in batches]
    return [micro for batch in own for micro in split_rows(batch, config.parallel.filling)]

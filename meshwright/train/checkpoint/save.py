"""A checkpoint is written by all ranks, and is there at once or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from meshwright.errors import MeshwrightError, Problem, RunError
from meshwright.train.assemble import Assembly
from meshwright.train.checkpoint import folder as folders
from meshwright.train.checkpoint.marker import Marker
from meshwright.train.checkpoint.state import random_state, tensors_of
from meshwright.train.checkpoint.together import agreed, gather, on_the_first, this_rank


def save(run: Assembly, folder: Path, marker: Marker, keep: int) -> Marker:
    """Save the run as `step-N` in `folder`, then remove all but the newest `keep`; on all ranks, which share it.

    marker: all but its files, with which it is returned. Nothing of the run is changed, whether this succeeds or fails.

    Errors: `RunError` on all ranks alike where it cannot be written, and what was there is still there; or where an
    old one cannot be removed.
    """
    step = marker.progress.step
    try:
        partial = on_the_first(lambda: folders.begin(folder, step))
        try:
            agreed(lambda: _demand_shared(partial))
            tensors = agreed(lambda: tensors_of(run) | random_state(run.device))
            _write(tensors, partial)
            written = gather(agreed(lambda: folders.digests(_own_files(partial))))
            marker = replace(marker, files={name: file for each in written for name, file in each.items()})
            on_the_first(lambda: folders.publish(partial, marker))
        except MeshwrightError:
            if this_rank() == 0:
                folders.discard(partial)
            raise
    except MeshwrightError as error:
        raise _failed(step, folder, error) from error
    on_the_first(lambda: folders.prune(folder, keep))
    return marker


def _write(tensors: dict[str, Any], partial: Path) -> None:
    try:
        dcp.save(tensors, storage_writer=dcp.FileSystemWriter(partial, sync_files=True))
    except CheckpointException as error:
        raise RunError(
            [Problem(where=f"rank {rank}", what=f"{_said(cause)}") for rank, (cause, _) in error.failures.items()]
        ) from error


def _said(error: BaseException) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


def _own_files(partial: Path) -> list[Path]:
    """Those that this rank has written."""
    mine = sorted(partial.glob(f"__{this_rank()}_*"))
    return [*mine, partial / ".metadata"] if this_rank() == 0 else mine


def _demand_shared(partial: Path) -> None:
    if not partial.is_dir():
        raise RunError(
            Problem(
                where=f"rank {this_rank()}",
                what=f"{partial} is not seen here",
                why="all ranks write into one folder",
                fix="--checkpoint.folder on a file system that all machines share",
            )
        )


def _failed(step: int, folder: Path, error: MeshwrightError) -> RunError:
    whole = folders.checkpoints_in(folder)
    left = f"{whole[-1]} is whole: --resume goes on from it" if whole else "there is no checkpoint to go on from yet"
    return RunError(
        Problem(
            where=f"checkpoint of step {step}",
            what=f"not saved: {str(problem).replace(chr(10), chr(10) + '  ')}",
            why=f"the run ends rather than go on without what it was told to keep; {left}",
            fix="room in that folder, or --checkpoint.folder with another one",
        )
        for problem in error.problems
    )

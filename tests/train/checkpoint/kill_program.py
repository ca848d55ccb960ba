"""A run that is killed amid its second save: `python kill_program.py FOLDER POINT`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.train.checkpoint import folder as folders
from meshwright.train.checkpoint import save as saving
from meshwright.train.config import CheckpointConfig, TrainConfig, TrainingConfig
from tests.parity.harness import laid_out, small
from tests.train.checkpoint import programs

LENGTH, STEPS = 16, 3
POINTS = {
    "before anything is written": (saving, "_write", 0),
    "amid the files of the tensors": (saving.dcp.FileSystemWriter, "finish", 0),
    "after the files of the tensors": (folders, "digests", 0),
    "with a marker and no name": (folders, "_sync", 0),
    "right after the rename": (folders, "_sync", 1),
    "before the old one is removed": (folders, "prune", 0),
    "once the old one has lost its name": (folders.shutil, "rmtree", 0),
}
"""Where it is killed: at a call of this function, after as many calls in the save that were let through."""


def recipe(steps: int = STEPS) -> TrainConfig:
    """Saves after every step, and keeps the newest."""
    training = TrainingConfig(steps=steps, length=LENGTH, batch=4, validation_batches=0)
    return replace(laid_out(small(vocab=320)), training=training, checkpoint=CheckpointConfig(every=1, keep=1))


def kill_at(place: Any, name: str, let_through: int) -> None:
    """Kill this process at a call of `place.name`, once the second save has begun."""
    whole: Callable[..., Any] = getattr(place, name)
    begin, calls = folders.begin, [-1]

    def begins(folder: Path, step: int) -> Path:
        partial = begin(folder, step)
        calls[0] = 0 if step == 2 else -1
        return partial

    def counted(*args: Any, **kwargs: Any) -> Any:
        if calls[0] == let_through:
            os.kill(os.getpid(), signal.SIGKILL)
        calls[0] += calls[0] >= 0
        return whole(*args, **kwargs)

    setattr(folders, "begin", begins)  # noqa: B010
    setattr(place, name, counted)


if __name__ == "__main__":
    for point in sys.argv[2:]:  # a child for each: torch is loaded once
        folder = Path(sys.argv[1]) / point
        (folder / "checkpoints").mkdir(parents=True)
        child = os.fork()
        if child == 0:
            kill_at(*POINTS[point])
            programs.trained(0, recipe(), programs.numbered(16, LENGTH), str(folder))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"{point}: it came to its end"
        assert os.WTERMSIG(status) == signal.SIGKILL, point

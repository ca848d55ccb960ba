"""When a run saves, where, and what is said of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from meshwright.train.assemble import Assembly
from meshwright.train.checkpoint.marker import Marker, Progress
from meshwright.train.checkpoint.recipe import course_of, recipe_of
from meshwright.train.checkpoint.resume import checkpoint_folder
from meshwright.train.checkpoint.save import save
from meshwright.train.checkpoint.together import world
from meshwright.train.config import TrainConfig
from meshwright.train.data.stream import BatchStream


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """The checkpoints of one run: every `every` steps (0: none) and after the last, in `folder`, the newest `keep`."""

    folder: Path
    every: int
    keep: int
    last: int

    @classmethod
    def of(cls, config: TrainConfig, run: Path) -> Keeper:
        """That of the run in the folder `run`."""
        own = config.checkpoint
        folder = checkpoint_folder(config, run)
        return cls(folder=folder, every=own.every, keep=own.keep, last=config.training.steps)

    def describe(self, before: Mapping[str, Any] | None = None) -> dict[str, str]:
        """For the head of the screen: name -> value; nothing where nothing is kept. before: the course of the run that
        goes on."""
        if not self.every:
            return {}
        same = before is not None and (self.every, self.keep) == (before.get("every"), before.get("keep"))
        kept = f"every {self.every} steps, the newest {self.keep}, in {self.folder}"
        return {"checkpoints": f"{kept}, as before" if same else kept}

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint follows this step."""
        return self.every > 0 and (step % self.every == 0 or step == self.last)

    def save(self, config: TrainConfig, run: Assembly, stream: BatchStream, progress: Progress) -> str:
        """Save on all ranks; what a person is told. Errors: those of `save`."""
        began = time.perf_counter()
        marker = Marker(
            progress=progress,
            stream=stream.state_dict(),
            recipe=recipe_of(config),
            course=course_of(config),
            ranks=str(run.backend.dims),
            world=world(),
        )
        saved = save(run, self.folder, marker, self.keep)
        seconds = time.perf_counter() - began
        return f"saved step-{progress.step}, {saved.bytes / 2**20:.1f} MiB in {seconds:.1f} s"


NONE: Final = Keeper(folder=Path(), every=0, keep=1, last=0)
"""Keeps nothing."""

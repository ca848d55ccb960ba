"""Which checkpoint `--resume` means, and whether the run folder that it lies in goes on.

A run folder goes on with its newest checkpoint. A checkpoint that is named itself begins a run folder of its own: what
came after it in the old one stays.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from meshwright.errors import ConfigError, Problem
from meshwright.train.checkpoint.folder import PARTIAL, checkpoints_in, make, step_of
from meshwright.train.checkpoint.marker import Marker, read_marker
from meshwright.train.show.run_folder import RunFolder, folder_of_runs

if TYPE_CHECKING:
    from meshwright.train.config import TrainConfig

NEWEST: Final = "newest"
"""The word for the newest checkpoint of the newest run."""
FLAG: Final = "--resume"
CHECKPOINTS: Final = "checkpoints"
"""The folder of the checkpoints in a run's folder."""
VARIABLE: Final = "MESHWRIGHT_RESUME"
"""The environment variable that names the checkpoint to the ranks of a run; "" for a run that begins."""


@dataclass(frozen=True)
class Resumed:
    """A checkpoint to go on from. run: the run folder that goes on; None where a new one is begun."""

    checkpoint: Path
    marker: Marker
    run: Path | None

    def describe(self) -> dict[str, str]:
        """For the head of the screen: name -> value."""
        return {"resumed": f"{self.checkpoint}, step {self.marker.progress.step} of {self.marker.ranks}"}


def expand(arguments: Sequence[str]) -> list[str]:
    """The arguments with `--resume` and `--resume PATH` written as the field that they set."""
    found, rest = [], list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name != FLAG:
            found.append(word)
            continue
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("-") else NEWEST
        found += ["--checkpoint.resume", value]
    return found


def find(config: TrainConfig, title: str) -> Resumed | None:
    """What the recipe resumes; None for a run that begins. title: what its runs are called.

    Errors: `ConfigError` where there is nothing whole to go on from.
    """
    wanted = config.checkpoint.resume
    if wanted is None:
        return None
    try:
        if wanted != NEWEST:
            checkpoint, run = _at(Path(wanted).expanduser())
        elif config.checkpoint.folder is not None:
            checkpoint, run = _newest(checkpoint_folder(config, Path())), None
        else:
            run = _newest_run(folder_of_runs(config.output.folder), title)
            checkpoint = _newest(run / CHECKPOINTS)
    except OSError as error:
        raise _nothing(f"{error.filename} cannot be read: {error.strerror}") from error
    return Resumed(checkpoint, read_marker(checkpoint), run)


def checkpoint_folder(config: TrainConfig, run: Path) -> Path:
    """Where the run in the folder `run` keeps its checkpoints."""
    own = config.checkpoint.folder
    return run / CHECKPOINTS if own is None else Path(own).expanduser()


def open_run(config: TrainConfig, title: str, resumed: Resumed | None) -> RunFolder:
    """The run folder that goes on or is begun, and the folder of its checkpoints, where it keeps any.

    Errors: `ConfigError` where one of them cannot be written, or the latter is another run's.
    """
    own, keeps = config.checkpoint.folder is not None, config.checkpoint.every > 0
    after = resumed.marker.progress.step if resumed else 0
    if keeps and own:
        make(checkpoint_folder(config, Path()), after, resumed.checkpoint if resumed else None)
    if resumed is not None and resumed.run is not None:
        run = RunFolder(resumed.run)
        run.go_on()
    else:
        run = RunFolder.create(config.output.folder, title)
    if keeps and not own:
        make(checkpoint_folder(config, run.path), after, resumed.checkpoint if resumed else None)
    return run


def _at(path: Path) -> tuple[Path, Path | None]:
    """The checkpoint that a path means, and the run folder that goes on."""
    if not path.exists():
        raise _nothing(f"{path} does not exist")
    if not path.is_dir():
        raise _nothing(f"{path} is a file")
    if path.name.endswith(PARTIAL):
        raise _nothing(f"{path} is a save that did not come to its end")
    if step_of(path) is not None:
        return path, None
    if (path / CHECKPOINTS).is_dir() or _is_run(path):
        return _newest(path / CHECKPOINTS), path
    is_own = path.name == CHECKPOINTS and _is_run(path.parent)
    return _newest(path), path.parent if is_own else None


def _is_run(path: Path) -> bool:
    return RunFolder(path).config.is_file()


def _newest(folder: Path) -> Path:
    found = checkpoints_in(folder)
    if not found:
        raise _nothing(f"no complete checkpoint in {folder}")
    return found[-1]


def _newest_run(output: Path, title: str) -> Path:
    """The newest run folder of the recipe; with a word on an older one, where only that has a checkpoint."""
    form = re.compile(re.escape(title) + r"-(\d{8}-\d{6})(?:-(\d+))?")
    found = (
        [(match, path) for path in output.iterdir() if (match := form.fullmatch(path.name))] if output.exists() else []
    )
    runs = [path for match, path in sorted(found, key=lambda pair: (pair[0][1], int(pair[0][2] or 0)))]
    if not runs:
        raise _nothing(f"no run of {title} in {output}")
    if not checkpoints_in(runs[-1] / CHECKPOINTS):
        older = [run for run in runs if checkpoints_in(run / CHECKPOINTS)]
        raise _nothing(f"no complete checkpoint in {runs[-1]}", f"{FLAG} {older[-1]}" if older else "")
    return runs[-1]


def _nothing(what: str, fix: str = "") -> ConfigError:
    return ConfigError(
        Problem(
            where=FLAG,
            what=what,
            why="a run goes on from a checkpoint, or from the newest of a run folder",
            fix=fix or f"{FLAG} with the path of one; a run keeps them with --checkpoint.every",
        )
    )


def inherited() -> Resumed | None:
    """What the parent of this rank has found, and None where that was nothing.

    Errors: `KeyError` where no parent has looked, under a bare torchrun.
    """
    path = os.environ[VARIABLE]
    return Resumed(Path(path), read_marker(Path(path)), None) if path else None

"""Which checkpoint `--resume` means, and whether the run folder that it lies in goes on.

A run folder goes on with its newest checkpoint. A checkpoint that is named itself begins a run folder of its own: what
came after it in the old one stays.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from meshwright.errors import ConfigError, Problem
from meshwright.train.checkpoint.folder import PARTIAL, checkpoints_in, make, step_of
from meshwright.train.checkpoint.marker import MARKER, Marker, read_marker
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
    """A checkpoint to go on from. run: the run folder that goes on; None where a new one is begun; folder: the
    `checkpoint.folder` that goes on, where there is one."""

    checkpoint: Path
    marker: Marker
    run: Path | None
    folder: str | None = None

    def describe(self, steps: int) -> dict[str, str]:
        """For the head of the screen of a run of so many steps: name -> value."""
        text = f"{self.checkpoint}, step {self.marker.progress.step} of {self.marker.ranks}"
        before = self.marker.course.get("steps", steps)
        if before != steps:
            text += f"; the rate follows the curve of {steps} steps now, {before} before"
        return {"resumed": text}

    def keeps(self) -> dict[str, str]:
        """Flags of what the run before kept, as this one keeps it unless it is told otherwise."""
        course = self.marker.course
        kept = {f"--checkpoint.{name}": str(course[name]) for name in ("every", "keep") if name in course}
        return kept | ({"--checkpoint.folder": self.folder} if self.folder is not None else {})


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


def inherit(arguments: Sequence[str], resumed: Resumed | None) -> list[str]:
    """The arguments, and what the run before kept where they do not say it."""
    said = {argument.partition("=")[0] for argument in arguments}
    kept = resumed.keeps() if resumed is not None else {}
    return [*arguments, *(word for flag, value in kept.items() if flag not in said for word in (flag, value))]


def find(config: TrainConfig, title: str) -> Resumed | None:
    """What the recipe resumes; None for a run that begins. title: what its runs are called.

    Errors: `ConfigError` where there is nothing whole to go on from.
    """
    wanted = config.checkpoint.resume
    if wanted is None:
        return None
    try:
        if wanted != NEWEST:
            checkpoint, run, folder = _at(Path(wanted).expanduser())
        elif config.checkpoint.folder is not None:
            checkpoint, run, folder = _newest(checkpoint_folder(config, Path())), None, config.checkpoint.folder
        else:
            run = _newest_run(folder_of_runs(config.output.folder), title)
            checkpoint, folder = _newest(_kept_by(run)), _own_folder(run)
    except OSError as error:
        raise _nothing(f"{error.filename} cannot be read: {error.strerror}") from error
    return Resumed(checkpoint, read_marker(checkpoint), run, folder)


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


def _at(path: Path) -> tuple[Path, Path | None, str | None]:
    """The checkpoint that a path means, and the run folder and the `checkpoint.folder` that go on."""
    if not path.exists():
        raise _nothing(f"{path} does not exist")
    if not path.is_dir():
        raise _nothing(f"{path} is a file")
    if path.name.endswith(PARTIAL):
        raise _nothing(f"{path} is a save that did not come to its end")
    if step_of(path) is not None:
        return path, None, None
    if (path / MARKER).is_file():
        raise _misnamed(path)
    if (path / CHECKPOINTS).is_dir() or _is_run(path):
        return _newest(_kept_by(path)), path, _own_folder(path)
    if path.name == CHECKPOINTS and _is_run(path.parent):
        return _newest(path), path.parent, None
    return _newest(path), None, str(path)


def _is_run(path: Path) -> bool:
    return RunFolder(path).config.is_file()


def _own_folder(run: Path) -> str | None:
    """The `checkpoint.folder` of a run; None where it is its own `checkpoints`."""
    try:
        folder = json.loads(RunFolder(run).config.read_text(encoding="utf-8"))["checkpoint"]["folder"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return folder if isinstance(folder, str) else None


def _kept_by(run: Path) -> Path:
    """The folder of the checkpoints of a run."""
    own = _own_folder(run)
    return run / CHECKPOINTS if own is None else Path(own).expanduser()


def _newest(folder: Path) -> Path:
    found = checkpoints_in(folder)
    if not found:
        whole = sorted(
            marker.parent for marker in folder.glob(f"*/{MARKER}") if not marker.parent.name.endswith(PARTIAL)
        )
        raise _misnamed(whole[-1]) if whole else _nothing(f"no complete checkpoint in {folder}")
    return found[-1]


def _misnamed(checkpoint: Path) -> ConfigError:
    """Of a checkpoint that was given another name."""
    step = read_marker(checkpoint).progress.step
    named = checkpoint.with_name(f"step-{step}")
    if named.exists():
        named = checkpoint.with_name("other") / named.name
    return ConfigError(
        Problem(
            where=FLAG,
            what=f"{checkpoint} is a checkpoint, but its name is not step-{step}",
            why="a checkpoint is known by its name, step-N for the one after step N",
            fix=f"{_renamed(checkpoint, named)}, then {FLAG} {named}",
        )
    )


def _renamed(old: Path, new: Path) -> str:
    """The command that does it."""
    made = "" if new.parent == old.parent else f"mkdir {new.parent} && "
    return f"{made}mv {old} {new}"


def _newest_run(output: Path, title: str) -> Path:
    """The newest run folder of the recipe; with a word on an older one, where only that has a checkpoint."""
    form = re.compile(re.escape(title) + r"-(\d{8}-\d{6})(?:-(\d+))?")
    found = (
        [(match, path) for path in output.iterdir() if (match := form.fullmatch(path.name))] if output.exists() else []
    )
    runs = [path for match, path in sorted(found, key=lambda pair: (pair[0][1], int(pair[0][2] or 0)))]
    if not runs:
        raise _nothing(f"no run of {title} in {output}")
    if not checkpoints_in(_kept_by(runs[-1])):
        older = [run for run in runs if checkpoints_in(_kept_by(run))]
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

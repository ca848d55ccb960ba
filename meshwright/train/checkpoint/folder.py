"""The folder of a run's checkpoints: `step-N` is whole, `step-N.partial` is a save that has not ended.

A checkpoint is written into the partial folder, every file down to the disk, its marker last; then the folder is
renamed. Whenever the process is killed, what bears the name of a checkpoint is one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from meshwright.errors import ConfigError, Problem, RunError
from meshwright.train.checkpoint.marker import MARKER, File, Marker

PARTIAL: Final = ".partial"
_STEP: Final = re.compile(r"step-(\d+)")
_CHUNK: Final = 1 << 22


def step_of(path: Path) -> int | None:
    """The step in the name of a checkpoint; None where the name is not that of one."""
    found = _STEP.fullmatch(path.name)
    return int(found[1]) if found else None


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder by step, the newest last; none where there is no folder.

    Errors: `OSError` where it cannot be read.
    """
    try:
        found = [path for path in folder.iterdir() if step_of(path) is not None]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda path: step_of(path) or 0)


def make(folder: Path, after: int, resumed: Path | None = None) -> None:
    """Make the folder for a run that goes on after step `after`, 0 for one that begins.

    resumed: the checkpoint that it goes on from. Errors: `ConfigError` where it cannot be written, or holds
    checkpoints that this run will only come to, or those of another run.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = checkpoints_in(folder)
        is_own = resumed is not None and resumed.parent.resolve() == folder.resolve()
        others = [path for path in held if not is_own or (step_of(path) or 0) > after]
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        raise _unwritable(folder, error.strerror or str(error)) from error
    if not writable:
        raise _unwritable(folder, "Permission denied")
    if others:
        raise ConfigError(
            Problem(
                where="checkpoint.folder",
                what=f"{folder} holds {others[-1].name}, and this run goes on after step {after}{_of(resumed)}",
                why="checkpoints of two runs would be taken for those of one",
                fix=f"--resume {others[-1]} to go on from there, or --checkpoint.folder with another folder",
            )
        )


def _of(resumed: Path | None) -> str:
    return f" of {resumed.parent}" if resumed else ""


def begin(folder: Path, step: int) -> Path:
    """A new, empty folder to save into; what earlier saves left unfinished is removed."""
    for left in folder.glob(f"step-*{PARTIAL}"):
        shutil.rmtree(left)
    partial = folder / f"step-{step}{PARTIAL}"
    partial.mkdir()
    return partial


def digests(paths: Iterable[Path]) -> dict[str, File]:
    """Name -> size and digest of each file."""
    return {path.name: _digest(path) for path in paths}


def publish(partial: Path, marker: Marker) -> Path:
    """Write the marker and give the folder its name: the checkpoint, which is whole from here on."""
    with open(partial / MARKER, "w", encoding="utf-8") as file:
        file.write(marker.render())
        file.flush()
        os.fsync(file.fileno())
    _sync(partial)
    whole = partial.with_name(partial.name.removesuffix(PARTIAL))
    partial.rename(whole)
    _sync(whole.parent)
    return whole


def prune(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep`. Each loses its name first: none is ever whole in part.

    Errors: `RunError` where one cannot be removed.
    """
    for old in checkpoints_in(folder)[:-keep]:
        doomed = old.with_name(old.name + PARTIAL)
        try:
            old.rename(doomed)
            shutil.rmtree(doomed)
        except OSError as error:
            raise RunError(
                Problem(
                    where=str(old),
                    what=f"an old checkpoint cannot be removed: {error.strerror}",
                    why=f"the newest {keep} are kept; the last one is whole",
                    fix="--checkpoint.keep with more of them, or --checkpoint.folder with another folder",
                )
            ) from error


def discard(partial: Path) -> None:
    """Give back the room of a save that failed, as far as that can be done."""
    with suppress(OSError):
        shutil.rmtree(partial)


def _digest(path: Path) -> File:
    found, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
            size += len(chunk)
    return File(bytes=size, sha256=found.hexdigest())


def _sync(folder: Path) -> None:
    """The names in a folder, down to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwritable(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        Problem(
            where="checkpoint.folder",
            what=f"nothing can be written to {str(folder)!r}: {reason}",
            fix="--checkpoint.folder with a folder that can be written",
        )
    )

"""The marker of a checkpoint: what it is of, where the run stood, and every file that belongs to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from meshwright.errors import ConfigError, Problem

MARKER: Final = "complete.json"
VERSION: Final = 1
"""Of the marker and of the names under which tensors are kept."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is. seconds: of training, over all its starts; tokens: trained on."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Marker:
    """progress: of the run; stream: the position in the data, as `BatchStream.state_dict` says it; recipe: what
    resuming holds against its own; ranks: those that saved it, in words; world: their number; files: name -> file;
    course: what may change when it goes on, as it was, `course_of`."""

    progress: Progress
    stream: Mapping[str, Any]
    recipe: Mapping[str, Any]
    ranks: str
    world: int
    files: Mapping[str, File] = field(default_factory=dict)
    course: Mapping[str, Any] = field(default_factory=dict)

    def render(self) -> str:
        """As JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n"

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files.values())


def read_marker(checkpoint: Path) -> Marker:
    """The marker of a checkpoint whose files are all there in their sizes.

    Errors: `ConfigError` where it is none, is damaged, or was written by a version that is not known.
    """
    try:
        found = json.loads((checkpoint / MARKER).read_text(encoding="utf-8"))
        if found.pop("version") != VERSION:
            raise damaged(checkpoint, "its marker is of another version of meshwright")
        files = {name: File(**file) for name, file in found.pop("files").items()}
        marker = Marker(**{**found, "progress": Progress(**found["progress"])}, files=files)
        sizes = {name: (checkpoint / name).stat().st_size for name in files}
    except FileNotFoundError as error:
        raise damaged(checkpoint, f"{Path(error.filename).name} is missing") from error
    except OSError as error:
        raise damaged(checkpoint, f"it cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(checkpoint, f"{MARKER} cannot be understood") from error
    short = [name for name, file in files.items() if sizes[name] != file.bytes]
    if short:
        raise damaged(checkpoint, f"{short[0]} has {sizes[short[0]]} bytes, not {files[short[0]].bytes}")
    return marker


def damaged(checkpoint: Path, what: str) -> ConfigError:
    """Of a checkpoint that is not what was written."""
    return ConfigError(
        Problem(
            where=str(checkpoint),
            what=f"no whole checkpoint: {what}",
            why="a checkpoint is used as it was written or not at all",
            fix="--resume with another checkpoint, one of those beside it",
        )
    )

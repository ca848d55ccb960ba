"""The folder of one run: its config, its metrics, its logs.

config.json        what was run
metrics.jsonl      a StepRecord a line
loss.svg           the curve, once the run has ended
checkpoints/       step-N, if it keeps any
logs/              rank<N>.log, and rank<N>.error.json of a rank that failed
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.errors import ConfigError, Problem
from meshwright.train.show.record import StepRecord

if TYPE_CHECKING:
    from meshwright.train.config import TrainConfig

VARIABLE = "MESHWRIGHT_RUN"
"""The environment variable that names the folder to the ranks of a run."""


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run's files, and how they are written."""

    path: Path

    @classmethod
    def create(cls, output: str, recipe: str, now: datetime | None = None) -> RunFolder:
        """A new folder `<output>/<recipe>-<date>-<time>`, with `-1`, `-2`, ... after it where that is taken.

        Processes that ask at once get different folders.
        Errors: `ConfigError` where it cannot be written.
        """
        name = f"{recipe}-{now or datetime.now():%Y%m%d-%H%M%S}"
        folder = folder_of_runs(output)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for attempt in count():
                path = folder / (f"{name}-{attempt}" if attempt else name)
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                break
            (path / "logs").mkdir()
        except OSError as error:
            raise ConfigError(
                Problem(
                    where="output.folder",
                    what=f"no folder can be made in {output!r}: {error.strerror}",
                    fix="--output.folder with a folder that can be written",
                )
            ) from error
        return cls(path)

    @classmethod
    def inherited(cls) -> RunFolder | None:
        """The folder that the parent of this rank has made; None where the ranks choose one themselves."""
        path = os.environ.get(VARIABLE)
        return cls(Path(path)) if path else None

    @property
    def config(self) -> Path:
        """What was run."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """A StepRecord a line."""
        return self.path / "metrics.jsonl"

    @property
    def curve(self) -> Path:
        """The picture of the loss."""
        return self.path / "loss.svg"

    @property
    def logs(self) -> Path:
        """The folder of the ranks' output and errors."""
        return self.path / "logs"

    def log(self, rank: int) -> Path:
        """What the rank printed; of rank 0, whose output is on the terminal, its tracebacks alone."""
        return self.logs / f"rank{rank}.log"

    def error(self, rank: int) -> Path:
        """What ended the rank, if something did."""
        return self.logs / f"rank{rank}.error.json"

    @property
    def has_failed(self) -> bool:
        """Whether some rank has reported what ended it."""
        return any(self.logs.glob("rank*.error.json"))

    def write_config(self, config: TrainConfig) -> None:
        """Write config.json, the `record_of` the recipe."""
        self.config.write_text(json.dumps(record_of(config), indent=2) + "\n", encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl. A float that is not finite, which JSON cannot say, becomes its name: "nan"."""
        line = json.dumps({key: _finite(value) for key, value in record.items()}, allow_nan=False)
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def go_on(self) -> None:
        """Forget how an earlier start of this run ended: its ranks' errors would end the new ones.

        Errors: `ConfigError` where the folder cannot be written.
        """
        try:
            self.logs.mkdir(exist_ok=True)
            for error in self.logs.glob("rank*.error.json"):
                error.unlink()
        except OSError as error:
            raise ConfigError(
                Problem(where=str(self.path), what=f"this run folder cannot be written: {error.strerror}")
            ) from error

    def discard_unbegun(self) -> None:
        """Remove the folder of a run that was refused before it began."""
        if not self.config.exists():
            shutil.rmtree(self.path)

    def rewind(self, step: int) -> list[StepRecord]:
        """Take the records after `step` out of metrics.jsonl, to be made anew; those that stay."""
        kept: list[StepRecord] = []
        if not self.metrics.exists():
            return kept
        lines = self.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        for line in lines:
            try:
                record = StepRecord(**json.loads(line))
            except ValueError:  # written in part as the run was killed, and so after the checkpoint
                break
            if record.step > step:
                break
            kept.append(record)
        part = self.metrics.with_suffix(".part")
        part.write_text("".join(lines[: len(kept)]), encoding="utf-8")
        part.replace(self.metrics)
        return kept


def folder_of_runs(output: str) -> Path:
    """The folder that `output.folder` names: `~` is the user's own."""
    return Path(os.path.expanduser(output))


def record_of(config: TrainConfig) -> dict[str, Any]:
    """A recipe as JSON has it: sections as objects, functions and classes by name; `model.type` is its class."""
    record: dict[str, Any] = _plain(config)
    record["model"] = {"type": _name(type(config.model)), **record["model"]}
    return record


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """Made of what JSON has."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return _finite(value)
    return _name(value) if callable(value) else str(value)


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else str(value)

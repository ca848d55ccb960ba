"""What of a recipe stays when a run goes on: the model, how it learns, and the order of the data.

Layouts, degrees, backend, micro-batches, validation and the number of steps may change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from meshwright.errors import ConfigError, Problem
from meshwright.train.checkpoint.marker import Marker
from meshwright.train.show.run_folder import record_of

if TYPE_CHECKING:
    from meshwright.train.config import TrainConfig
    from meshwright.train.data import Corpus

_SECTIONS: Final = ("model", "optimizer")
_FIELDS: Final = ("training.length", "training.batch", "training.max_norm", "data.seed")
_ABSENT: Final = "not there"


def recipe_of(config: TrainConfig) -> dict[str, Any]:
    """Field -> value, of all that stays; made of what JSON has."""
    flat = dict(_flat(record_of(config)))
    return {name: value for name, value in flat.items() if name.split(".")[0] in _SECTIONS or name in _FIELDS}


def demand_same_run(config: TrainConfig, marker: Marker) -> None:
    """Errors: `ConfigError` naming each field that is another than the checkpoint's, and a run without a step left."""
    mine, kept = recipe_of(config), marker.recipe
    problems = [
        Problem(
            where=name,
            what=f"{mine.get(name, _ABSENT)}, but {kept.get(name, _ABSENT)} in the checkpoint",
            why="weights and optimizer state are those of another recipe",
            fix=f"--{name.replace('_', '-')} {kept[name]}, or a new run" if name in kept else "a new run",
        )
        for name in dict.fromkeys([*mine, *kept])
        if mine.get(name, _ABSENT) != kept.get(name, _ABSENT)
    ]
    if config.training.steps <= marker.progress.step:
        problems.append(
            Problem(
                where="training.steps",
                what=f"{config.training.steps} steps, and the checkpoint is of step {marker.progress.step}",
                why="nothing is left to train",
                fix=f"--training.steps above {marker.progress.step}",
            )
        )
    if problems:
        raise ConfigError(problems)


def demand_same_data(config: TrainConfig, marker: Marker, corpus: Corpus) -> None:
    """Errors: `ConfigError` where the text or its order is another: samples would come twice, or never."""
    training = config.training
    stream = corpus.train(length=training.length, global_batch=training.batch, seed=config.data.seed)
    stream.load_state_dict(marker.stream)


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value

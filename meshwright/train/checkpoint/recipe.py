"""What of a recipe stays when a run goes on: the model, how it learns, and the order of the data.

Layouts, degrees, backend, micro-batches, validation and the number of steps may change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from meshwright.errors import ConfigError, Problem
from meshwright.train.checkpoint.marker import Marker
from meshwright.train.show.run_folder import record_of

if TYPE_CHECKING:
    from meshwright.train.config import TrainConfig
    from meshwright.train.data import Corpus

_SECTIONS: Final = ("model", "optimizer")
_ORDER: Final = "the samples would come in another order, some of them twice and some never"
_TEXT: Final = "the place in the data is one in that text: samples would come twice, or never"
_WHY: Final = {
    "training.length": _ORDER,
    "training.batch": _ORDER,
    "data.seed": _ORDER,
    "data.path": _TEXT,
    "data.tokenizer": _TEXT,
    "data.vocab": _TEXT,
    "data.field": _TEXT,
    "data.validation": _TEXT,
    "training.max_norm": "the run would learn in another way from here on",
    "optimizer": "the run would learn in another way from here on",
    "model": "the weights are those of another model",
}
"""Field or section -> why it stays."""
_FILES: Final = ("data.path", "data.tokenizer")
_HUB: Final = "hf:"
_ABSENT: Final = "not there"


def recipe_of(config: TrainConfig) -> dict[str, Any]:
    """Field -> value, of all that stays; made of what JSON has. Files are named from the root: a run may go on from
    another folder."""
    flat = dict(_flat(record_of(config)))
    kept = {name: value for name, value in flat.items() if name.split(".")[0] in _SECTIONS or name in _WHY}
    if config.data.tokenizer is not None:
        kept["data.tokenizer"] = _rooted(config.data.tokenizer)
        del kept["data.vocab"]  # of a tokenizer that is trained
    return {**kept, "data.path": [_rooted(path) for path in config.data.path]}


def course_of(config: TrainConfig) -> dict[str, Any]:
    """What may change when a run goes on, and goes on as it was where nobody says another."""
    own = config.checkpoint
    return {"steps": config.training.steps, "every": own.every, "keep": own.keep}


def demand_same_run(config: TrainConfig, marker: Marker) -> None:
    """Errors: `ConfigError` naming each field that is another than the checkpoint's, and a run without a step left."""
    mine, kept = recipe_of(config), marker.recipe
    problems = [
        Problem(
            where=name,
            what=f"{_said(mine, name)}, but {_said(kept, name)} in the checkpoint",
            why=_WHY.get(name) or _WHY[name.split(".")[0]],
            fix=f"{_flag(name, kept[name])}, or a new run" if name in kept else "a new run",
        )
        for name in dict.fromkeys([*mine, *kept])
        if mine.get(name, _ABSENT) != kept.get(name, _ABSENT) and not _may_be_the_same(name, mine, kept)
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
    if stream.state_dict()["corpus"] != marker.stream.get("corpus"):
        now = _said(recipe_of(config), "data.path")
        before = _said(marker.recipe, "data.path") if "data.path" in marker.recipe else now
        raise ConfigError(
            Problem(
                where="data.path",
                what=f"the text of {now} is not that of {before} when the checkpoint was saved",
                why=_TEXT,
                fix="the text and the tokenizer as they were, or a new run",
            )
        )
    stream.load_state_dict(marker.stream)


def _may_be_the_same(name: str, mine: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    """Whether only the text itself can tell: its file was moved, or one of the two does not say."""
    if name not in kept or name not in mine:
        return name.startswith("data.")
    lay = kept[name] if name == "data.path" else [kept[name]]
    return name in _FILES and any(path and not path.startswith(_HUB) and not os.path.exists(path) for path in lay)


def _rooted(path: str) -> str:
    return path if path.startswith(_HUB) else os.path.realpath(os.path.expanduser(path))


def _said(recipe: Mapping[str, Any], name: str) -> str:
    value = recipe.get(name, _ABSENT)
    if name == "data.path":
        return " ".join(value) or "the standard library"
    return str(value)


def _flag(name: str, value: Any) -> str:
    """What sets the field on the command line."""
    flag = f"--{name.replace('_', '-')}"
    if name == "data.path":
        return " ".join([flag, *value]) if value else f"{flag} with nothing after it"
    return f"{flag} {value}"


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value

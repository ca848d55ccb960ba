"""The recipe that every process reads for itself: what its file changes in meshwright holds on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from meshwright import flags, recipes
from meshwright.train.config import TrainConfig


@dataclass(frozen=True)
class Recipe:
    """name: as on the command line, or a path; arguments: the flags that follow it."""

    name: str
    arguments: tuple[str, ...] = ()

    def load(self) -> TrainConfig:
        """Its config. Errors: `ConfigError` of the recipe or of a flag."""
        return _loaded(self)


@cache
def _loaded(recipe: Recipe) -> TrainConfig:
    program = f"meshwright parity {recipe.name}"
    return flags.parse(recipes.find(recipe.name), recipe.arguments, program=program)

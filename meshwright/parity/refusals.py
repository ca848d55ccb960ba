"""Layouts in which no step is tried: those that the model's numbers do not allow, and declarations that are none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from meshwright.errors import ConfigError, MeshwrightError, Problem
from meshwright.parity.cell import Verdict
from meshwright.train.assemble import on_meta, run_dims
from meshwright.train.config import ComputeConfig, ParallelConfig, TrainConfig
from meshwright.train.preflight import arithmetic, preflight


def demand_one_device(config: TrainConfig) -> None:
    """Errors: `ConfigError` where the recipe's own numbers can have no run on one device, whatever the layout."""
    compute = ComputeConfig(loss_chunks=config.compute.loss_chunks)  # all else that it says depends on the layout
    single = replace(config, parallel=ParallelConfig(), compute=compute)
    problems = arithmetic(single, run_dims(single))
    if problems:
        raise ConfigError(problems)


def refusal(config: TrainConfig) -> tuple[Verdict, tuple[Problem, ...]] | None:
    """Why there can be no such run; None if there can."""
    try:
        numbers = _of_numbers(config)
        if numbers:
            return Verdict.NONE, _in_words_of_parity(numbers)
        preflight(config, run_dims(config).world)
    except MeshwrightError as error:
        of_numbers = all(problem.uneven for problem in error.problems)
        return Verdict.NONE if of_numbers else Verdict.REFUSED, _in_words_of_parity(error.problems)
    return None


def _in_words_of_parity(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """With fixes that `--layout` takes in place of flags of `train`."""
    return tuple(replace(each, fix=_FLAG.sub(_word, each.fix)) for each in problems)


_FLAG: Final = re.compile(r"--parallel\.(no-)?([a-z-]+)( (?=\w))?")


def _word(flag: re.Match[str]) -> str:
    off, name, valued = flag.groups()
    value = "=" if valued else "=no" if off else "=yes"
    return f"--layout {name.replace('-', '_')}{value}"


def _of_numbers(config: TrainConfig) -> list[Problem]:
    """Degrees, divisions, and what a module says that it cannot split."""
    try:
        dims = run_dims(config)
    except ConfigError as error:
        return list(error.problems)
    model, _ = on_meta(config)
    named = [(path or type(module).__name__, getattr(module, "config", None)) for path, module in model.named_modules()]
    roots = [problem for path, own in named if own is not None for problem in own.problems(path, dims)]
    return [*arithmetic(config, dims), *roots]

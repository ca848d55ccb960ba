"""`meshwright train`: the parent checks, prepares and starts one process a rank; a rank trains.

The same command line does both: a process that finds torchrun's environment is a rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from meshwright import recipes, terminal
from meshwright.errors import ConfigError, RunError
from meshwright.train.launch.environment import CORPUS
from meshwright.train.launch.failure import problem_of
from meshwright.train.show.progress import Preparation
from meshwright.train.show.run_folder import RunFolder

if TYPE_CHECKING:
    from meshwright.train.config import TrainConfig


def is_rank() -> bool:
    """Whether this process is one rank of a run."""
    return {"RANK", "LOCAL_RANK", "WORLD_SIZE"} <= os.environ.keys()


def train(recipe: str, config: TrainConfig, arguments: Sequence[str]) -> int:
    """Train what `config` says; the exit code.

    arguments: those of `meshwright` that led here; each rank is started with them

    Errors: `ConfigError` and `DataError` before any process starts, `RunError` where a rank fails.
    """
    if is_rank():
        return _rank(recipe, config)
    processes = _processes(config)
    folder, prepared = _prepare(recipe, config, processes)
    command = [sys.executable, "-P", "-m", "meshwright", *arguments]  # -P: a file of this folder shadows no import
    try:
        launch(command, processes, folder, {"OMP_NUM_THREADS": str(config.launch.threads), **prepared})
    except KeyboardInterrupt:
        kept = any(folder.path.glob("checkpoints/step-*[0-9]"))
        again = "; --resume goes on from its newest checkpoint" if kept else ""
        terminal.err().print(f"stopped; what was written is in {folder.path}{again}", soft_wrap=True)
        return 130
    return 0


def launch(command: Sequence[str], processes: int, folder: RunFolder, environment: Mapping[str, str]) -> None:
    """Run `command` as the ranks of one run.

    environment: added to what the ranks inherit

    Errors: `RunError` with the first cause if a rank fails. All ranks have ended when it returns or raises; SIGTERM and
    SIGHUP end them too, with SystemExit.
    """
    from meshwright.train.launch.agent import supervise

    try:
        failures = supervise(command, processes, folder, environment)
    finally:
        terminal.out().show_cursor()  # a rank that is ended amid its live screen leaves it hidden
    if failures:
        first = failures[0].report
        if first is not None and first.refused:
            folder.discard_unbegun()
        raise RunError(problem_of(failures, processes, folder))


def _rank(recipe: str, config: TrainConfig) -> int:
    from meshwright.train.launch.rank import run_rank

    def work() -> None:
        from meshwright.train.trainer import run

        run(config, recipes.title(recipe))

    return run_rank(work)


def _processes(config: TrainConfig) -> int:
    from meshwright.train import numbers

    problems = numbers.problems(config)
    if problems:
        raise ConfigError(problems)
    from meshwright.train.assemble import run_dims

    return config.launch.processes or run_dims(config).world


def _prepare(recipe: str, config: TrainConfig, processes: int) -> tuple[RunFolder, dict[str, str]]:
    """All that can go wrong before a process starts, the cheapest first; the run's folder, and in environment variables
    what else the ranks need to know."""
    from meshwright.train.checkpoint import resume
    from meshwright.train.checkpoint.recipe import demand_same_data, demand_same_run
    from meshwright.train.compute import demand_device
    from meshwright.train.data import prepare
    from meshwright.train.launch.device import choose
    from meshwright.train.preflight import check_vocabulary, preflight
    from meshwright.train.show.metrics import check_extras

    preflight(config, processes)
    check_extras(config)
    demand_device(config.compute, choose(config.launch.device, processes).type)
    title = recipes.title(recipe)
    resumed = resume.find(config, title)
    if resumed is not None:
        demand_same_run(config, resumed.marker)
    console = terminal.out()
    with Preparation(console) as preparation:
        corpus = prepare(config.data, length=config.training.length, progress=preparation.report)
    check_vocabulary(config, corpus.vocab_size)
    if resumed is not None:
        demand_same_data(config, resumed.marker, corpus)
    folder = resume.open_run(config, title, resumed)
    console.print(f"starting {processes} process{'es' * (processes > 1)}", style="dim")
    return folder, {CORPUS: corpus.folder, resume.VARIABLE: str(resumed.checkpoint) if resumed else ""}

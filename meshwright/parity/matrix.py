"""All layouts on all backends, each held against one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

from meshwright.errors import ConfigError, MeshwrightError, Problem, SpmdTypeError
from meshwright.parity.cell import Cell, Matrix, Verdict
from meshwright.parity.compare import first_off, largest_error
from meshwright.parity.diagnose import law_of
from meshwright.parity.layouts import named, world_of
from meshwright.parity.outcome import Outcome, Part, together
from meshwright.parity.processes import RankDied, RankFailed, Started
from meshwright.parity.recipe import Recipe
from meshwright.parity.refusals import demand_one_device, refusal
from meshwright.parity.shapes import Shapes
from meshwright.parity.step import alone, process_part, thread_parts
from meshwright.train.config import BackendName, ParallelConfig, TrainConfig

Told = Callable[[Cell], object]
SIMULATED, PROCESSES = "simulated", "processes"
_REFUSES: Final = (ConfigError, SpmdTypeError)


def compare(
    recipe: Recipe,
    layouts: Sequence[ParallelConfig],
    backends: Sequence[BackendName],
    *,
    fast: bool = False,
    told: Told = lambda cell: None,
) -> Matrix:
    """One step of each layout on each backend against one device; `told` of each cell as it is done.

    fast: ranks are threads of this process, and the backend is spmd_types. Processes of one number of ranks are
    started once.
    Errors: those of the recipe on one device; `RankDied`.
    """
    config = recipe.load()
    demand_one_device(config)
    truth: dict[Shapes, Outcome] = {}
    rows = []
    with closing(Started()) as started:
        for layout in layouts:
            cells = []
            shapes = Shapes.of(config, layout)
            if shapes not in truth:
                truth[shapes] = alone(config, shapes)
            for backend in backends:
                small = shapes.shrunk(config, replace(layout, backend=backend))
                ranks = _simulated if fast else partial(_on_processes, started, recipe)
                parts = partial(ranks, shapes, small)
                cells.append(_cell(config, small, shapes, truth[shapes], parts))
                told(cells[-1])
            rows.append(cells)
    return Matrix(recipe.name, SIMULATED if fast else PROCESSES, backends, rows)


def _cell(
    config: TrainConfig, small: TrainConfig, shapes: Shapes, true: Outcome, parts: Callable[[], Sequence[Part]]
) -> Cell:
    ended = partial(Cell, named(small.parallel), small.parallel.backend)
    refused = refusal(small)
    if refused is not None:
        verdict, problems = refused
        return ended(verdict, problems=problems)
    try:
        mine = together(parts())
    except RankDied:
        raise
    except RankFailed as error:
        cause = error.cause if isinstance(error.cause, _REFUSES) else None
        return ended(Verdict.REFUSED if cause else Verdict.FAILED, problems=(cause or error).problems)
    except MeshwrightError as error:
        verdict = Verdict.REFUSED if isinstance(error, _REFUSES) else Verdict.FAILED
        return ended(verdict, problems=error.problems)
    off = tuple(first_off(mine, true))
    largest = largest_error(mine, true)
    if not off:
        return ended(Verdict.OK, error=largest)
    return ended(Verdict.OFF, error=largest, off=off, law=law_of(off[-1], mine, true, config, small, shapes))


def _simulated(shapes: Shapes, small: TrainConfig) -> list[Part]:
    try:
        return thread_parts(small, shapes.batches)
    except MeshwrightError:
        raise
    except Exception as error:  # of one rank; the others were let go
        raise RankFailed(Problem(where="a simulated rank", what=f"{type(error).__name__}: {error}")) from error


def _on_processes(started: Started, recipe: Recipe, shapes: Shapes, small: TrainConfig) -> list[Part]:
    return started.of(world_of(small.parallel)).run(recipe_part, recipe, shapes, small.parallel)


def recipe_part(rank: int, recipe: Recipe, shapes: Shapes, layout: ParallelConfig) -> Part:
    """This process's part of a step; the recipe is read here too."""
    return process_part(rank, shapes.shrunk(recipe.load(), layout), shapes.batches)

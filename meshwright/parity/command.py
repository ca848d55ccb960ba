"""`meshwright parity`: its own flags, the progress while it runs, and what it prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from meshwright import recipes, terminal
from meshwright.errors import ConfigError, Problem, nearest
from meshwright.parity.cell import Cell
from meshwright.parity.document import document
from meshwright.parity.layouts import covering, every, parse, world_of
from meshwright.parity.matrix import Told, compare
from meshwright.parity.recipe import Recipe
from meshwright.parity.show import show
from meshwright.train.config import BackendName, ParallelConfig

BACKENDS: Final[tuple[BackendName, ...]] = get_args(BackendName)
FAST: Final[tuple[BackendName, ...]] = ("spmd_types",)
MOST: Final = 8
"""Ranks on one machine that a check is worth."""


@dataclass
class Options:
    """The command's own flags; rest: those of the recipe."""

    ranks: int = 4
    every: bool = False
    layouts: list[ParallelConfig] = field(default_factory=list)
    backends: tuple[BackendName, ...] = ()
    fast: bool = False
    json: bool = False
    rest: list[str] = field(default_factory=list)

    def tried(self, *, experts: bool) -> list[ParallelConfig]:
        """The layouts to try; experts: the model has some. Errors: `ConfigError` where there is none."""
        found = self.layouts or (every if self.every else covering)(self.ranks, experts=experts)
        if self.fast:
            found = [layout for layout in found if layout.pp == 1]
        if not found:
            fix = "--layout tp=2" if self.layouts else "--ranks 2"
            why = "simulated ranks know no pipeline" if self.layouts else "a layout has two ranks at least"
            raise ConfigError(Problem(where="meshwright parity", what="no layout to try", why=why, fix=fix))
        return sorted(found, key=world_of)


def run(arguments: Sequence[str]) -> int:
    """The exit code: 0 where all cells equal one device, 1 where any differs. Errors: `ConfigError` of the command
    line or the recipe."""
    options = read(arguments)
    name, *flags = options.rest or [""]
    if not name or name.startswith("-"):
        found = f"{name!r} where the recipe belongs" if name else "no recipe"
        fix = f"meshwright parity {recipes.FIRST}"
        raise ConfigError(Problem(where="meshwright parity", what=found, fix=fix))
    _demand_used(flags)
    backends = options.backends or (FAST if options.fast else BACKENDS)
    recipe = Recipe(name, tuple(flags))
    layouts = options.tried(experts=recipe.load().model.modules().load is not None)
    with _progress(terminal.err(), len(layouts) * len(backends)) as told:
        matrix = compare(recipe, layouts, backends, fast=options.fast, told=told)
    if options.json:
        sys.stdout.write(f"{document(matrix)}\n")
    else:
        show(matrix, terminal.out())
    return 0 if matrix.right else 1


def read(arguments: Sequence[str]) -> Options:
    """Errors: `ConfigError` for a value that a flag cannot have."""
    options, left = Options(), list(arguments)
    while left:
        flag, joined, value = left[0].partition("=")
        if left[0] in _SWITCHES:
            setattr(options, _SWITCHES[left.pop(0)], True)
        elif flag in _VALUES:
            left.pop(0)
            if not joined:
                if not left:
                    raise _wrong(flag, "no value", _VALUES[flag])
                value = left.pop(0)
            _set(options, flag, value)
        else:
            options.rest.append(left.pop(0))
    _demand_together(options)
    return options


_SWITCHES: Final = {"--all": "every", "--fast": "fast", "--json": "json"}
_VALUES: Final = {
    "--ranks": f"--ranks with a number from 2 to {MOST}",
    "--layout": "--layout dp_shard=2,tp=2",
    "--backends": f"--backends {','.join(BACKENDS)}",
}
"""Flag -> an example of it."""


def _set(options: Options, flag: str, value: str) -> None:
    if flag == "--layout":
        options.layouts.append(parse(value))
    elif flag == "--ranks":
        if not value.isdecimal() or not 2 <= int(value) <= MOST:
            raise _wrong(flag, f"{value!r}", _VALUES[flag])
        options.ranks = int(value)
    else:
        names = [name.strip() for name in value.split(",")]
        for name in names:
            if name not in BACKENDS:
                raise _wrong(flag, f"no backend {name!r}{nearest(name, BACKENDS)}", _VALUES[flag])
        options.backends = tuple(dict.fromkeys(names))  # type: ignore[arg-type]


def _demand_together(options: Options) -> None:
    """Flags that contradict each other."""
    if options.fast and options.backends not in ((), FAST):
        why = "simulated ranks are threads of one process, and DTensor wants processes"
        raise ConfigError(Problem(where="--fast", what="it has the backend spmd_types alone", why=why, fix="no --fast"))
    for layout in options.layouts:
        ranks = world_of(layout)
        if ranks > MOST:
            raise _wrong("--layout", f"{ranks} ranks", f"a layout of at most {MOST} ranks")
        if ranks < 2:
            raise _wrong("--layout", "one rank: that is what layouts are held against", _VALUES["--layout"])
        if options.fast and layout.pp > 1:
            raise _wrong("--layout", "a pipeline, under --fast: simulated ranks know none", "no --fast")


def _demand_used(flags: Sequence[str]) -> None:
    """Of the recipe's flags parity takes those of the model, of the optimizer and of how blocks are computed."""
    for flag in (each.partition("=")[0] for each in flags):
        why = _CHOSEN.get(flag) or _CHOSEN.get(flag.partition(".")[0])
        if why:
            raise _wrong(flag, f"{why} here", "leave it out; layouts are named by --layout tp=2")


_CHOSEN: Final = {
    "--parallel": "the layouts that are tried are chosen",
    "--training": "a few small steps are made on rows of their own",
    "--data": "a few small steps are made on rows of their own",
    "--checkpoint": "nothing is kept",
    "--output": "nothing is kept",
    "--launch": "processes are started as a layout needs them",
    "--compute.compile": "nothing is compiled",
    "--compute.precision": "all is float32",
    "--compute.reduce-precision": "all is float32",
}
"""Section or flag -> why it has no say."""


def _wrong(flag: str, what: str, fix: str) -> ConfigError:
    return ConfigError(Problem(where=flag, what=what, fix=fix))


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Told]:
    """A bar on a terminal; nothing elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("one device", total=total)

        def told(cell: Cell) -> None:
            bar.update(task, advance=1, description=f"{cell.layout} on {cell.backend}")

        yield told

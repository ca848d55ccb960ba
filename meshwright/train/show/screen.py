"""What a person sees of a run: a panel that says what it is, a table of its course, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from meshwright import __version__
from meshwright.train.show.record import StepRecord, Summary
from meshwright.train.show.run_folder import RunFolder

LINES = 20  # of a run's course where there is no terminal, validations aside

Column = tuple[str, int, Callable[[StepRecord], str]]
"""Heading, width, what a record shows."""


def short(number: float) -> str:
    """A count in at most five characters: 950, 12.3k, 1.24M."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}" if number < 999.5 * size else f"{number / size:.0f}{unit}"
    return f"{number:.0f}"


COLUMNS: Final[tuple[Column, ...]] = (
    ("step", 7, lambda record: str(record.step)),
    ("loss", 9, lambda record: f"{record.loss:.4f}"),
    ("validation", 12, lambda record: "" if record.validation_loss is None else f"{record.validation_loss:.4f}"),
    ("grad norm", 11, lambda record: f"{record.grad_norm:.3f}"),
    ("rate", 10, lambda record: f"{record.rate:.2e}"),
    ("tokens/s", 10, lambda record: short(record.tokens_per_second)),
    ("memory", 11, lambda record: f"{record.memory_gib:.2f} GiB"),
)
"""The table of a run's course; all of it fits in 80 columns."""
BUSIEST: Final[Column] = ("busiest", 9, lambda record: f"{record.experts.max_over_mean:.2f}x" if record.experts else "")
"""One column more for a model with experts: tokens of the busiest over the mean."""


class Screen:
    """The screen of the rank that has the terminal; a context while training.

    On a terminal the step of the moment and a bar stay below the table, which gains a row at each validation. Elsewhere
    the table gains a row at each validation and about LINES more, and there are no control codes.
    """

    def __init__(self, console: Console, total_steps: int, columns: Sequence[Column] = COLUMNS) -> None:
        self._console, self._columns = console, columns
        self._every = max(1, math.ceil(total_steps / LINES))
        self._record: StepRecord | None = None
        self._validation_loss: float | None = None
        self._is_printed = True
        self._bar = Progress(
            TextColumn("  step {task.completed:.0f} of {task.total:.0f}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            expand=True,
        )
        self._task = self._bar.add_task("steps", total=total_steps)
        self._live = Live(console=console, get_renderable=self._moment, refresh_per_second=8, transient=True)

    def header(self, rows: Mapping[str, str]) -> None:
        """Say what will run: name -> value, in this order."""
        if self._console.is_terminal:
            title = f"meshwright {__version__}"
            self._console.print(Panel(_grid(rows), title=title, title_align="left", border_style="dim"))
        else:
            self._say(rows)

    def update(self, record: StepRecord) -> None:
        """Show one more step."""
        self._bar.update(self._task, completed=record.step)
        self._record, self._is_printed = record, False
        if record.validation_loss is not None:
            self._validation_loss = record.validation_loss
        due = not self._console.is_terminal and (record.step % self._every == 0 or record.step == 1)
        if due or record.validation_loss is not None:
            self._print()

    def note(self, text: str) -> None:
        """Say something between the rows, in a line of its own."""
        self._console.print(f"  {text}", style="dim", soft_wrap=True, highlight=False)

    def end(self, summary: Summary, folder: RunFolder) -> None:
        """Say how it went and where it is written; the folder's files should be complete."""
        rows = {"loss": _change(summary.loss)}
        if summary.validation_loss is not None:
            rows["validation"] = _change(summary.validation_loss)
        speed = summary.tokens / summary.seconds if summary.seconds > 0 else 0.0
        time = timedelta(seconds=round(summary.seconds))
        rows["trained"] = f"{short(summary.tokens)} tokens in {time}, {short(speed)} tokens/s"
        rows["run"] = str(folder.path)
        rows["files"] = "  ".join(sorted(file.name + "/" * file.is_dir() for file in folder.path.iterdir()))
        self._console.print()
        self._say(rows)

    def __enter__(self) -> Self:
        self._put([name for name, _, _ in self._columns], style="dim")
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if not self._is_printed:
            self._print()

    def _print(self) -> None:
        """The step of the moment as a row that stays."""
        assert self._record is not None
        self._put([show(self._record) for _, _, show in self._columns])
        self._is_printed = True

    def _put(self, cells: Sequence[str], style: str = "") -> None:
        """A row of the table; one line, however narrow the terminal is."""
        self._console.print(self._row(cells, style), no_wrap=True, overflow="crop")

    def _say(self, rows: Mapping[str, str]) -> None:
        """Name -> value: aligned on a terminal; elsewhere a line each, for other programs to read."""
        if self._console.is_terminal:
            self._console.print(_grid(rows))
            return
        width = max(map(len, rows), default=0)
        for name, value in rows.items():
            self._console.print(f"{name:<{width}}  {value}", soft_wrap=True)

    def _moment(self) -> RenderableType:
        """What is below the table now."""
        if self._record is None:
            return self._bar.get_renderable()
        latest = replace(self._record, validation_loss=self._validation_loss)
        cells = [show(latest) for _, _, show in self._columns]
        return Group(self._row(cells, style="cyan"), self._bar.get_renderable())

    def _row(self, cells: Sequence[str], style: str = "") -> Text:
        widths = (width for _, width, _ in self._columns)
        line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return Text(line, style=style, no_wrap=True, overflow="crop")


def _grid(rows: Mapping[str, str]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        grid.add_row(name, Text(value))
    return grid


def _change(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.4f} -> {pair[1]:.4f}"

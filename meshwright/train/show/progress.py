"""What a person sees while data is prepared: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

QUARTERS = 4


class Preparation:
    """A context; its `report(stage, share)` is called while it is open, and may not be called at all."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._quarter: dict[str, int] = {}

    def report(self, stage: str, share: float) -> None:
        """`share`, 0 to 1, of `stage` is done."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=1.0)
            self._quarter[stage] = -1
        self._bars.update(self._tasks[stage], completed=share)
        quarter = int(share * QUARTERS)
        if not self._console.is_terminal and quarter > self._quarter[stage]:
            self._quarter[stage] = quarter
            self._console.print(f"{stage}: {share:.0%}", soft_wrap=True)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

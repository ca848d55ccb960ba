"""How a message reaches a person: a panel on a terminal, plain lines in a file or a pipe."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

BROKEN_PIPE: Final = 128 + 13
"""The exit code of a program whose reader has gone, as a shell shows it: 128, and the number of SIGPIPE."""
_WIDE: Final = 10_000
_INDENT: Final = 2  # of what a broken cell goes on with
_WORDS: Final = re.compile(r"[^.,\s]+[.,\s]*|[.,\s]+")
_PARTS: Final = re.compile(r"[^_]+_*|_+")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # rich would end the process as if what it shows were wrong


def silence() -> None:
    """Nobody reads what is still to be written, and nothing is said of it."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def out() -> Console:
    """Where results go."""
    return _Console(file=sys.stdout, highlight=False, markup=False)


def err() -> Console:
    """Where messages about a failure go."""
    return Console(file=sys.stderr, highlight=False, markup=False)


def show_error(text: str, console: Console | None = None) -> None:
    """Print one failure: `text` as a panel, or after "error: " where there is no terminal."""
    console = console or err()
    if console.is_terminal:
        console.print(Panel(Text(text), title="error", title_align="left", border_style="red"))
    else:
        console.print(f"error: {text}", soft_wrap=True)


def print_table(table: Table, console: Console) -> None:
    """Print a table: as wide as the terminal lets it be; in a file or a pipe as wide as it is, without blanks at the
    ends of its lines."""
    if console.is_terminal:
        console.print(table)
        return
    wide = Console(file=io.StringIO(), width=_WIDE, color_system=None, highlight=False, markup=False)
    with wide.capture() as captured:
        wide.print(table)
    for line in captured.get().splitlines():
        console.print(line.rstrip(), soft_wrap=True)


@dataclass(frozen=True)
class Path:
    """A cell that is broken after dots, commas and blanks; inside a name that does not fit, after its underscores."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        for line in self._lines(options.max_width):
            yield Text(line)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max((len(word.rstrip()) for word in _WORDS.findall(self.text)), default=0)
        return Measurement(longest + _INDENT, max(longest + _INDENT, len(self.text)))

    def _lines(self, width: int) -> list[str]:
        lines = [""]
        for word in _WORDS.findall(self.text):
            fits = len(word.rstrip()) <= width - _INDENT
            for part in [word] if fits else _PARTS.findall(word):
                if len(lines[-1]) + len(part.rstrip()) > width and lines[-1].strip():
                    lines.append(" " * _INDENT)
                lines[-1] += part
        return [line.rstrip() for line in lines]

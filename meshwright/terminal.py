"""How a message reaches a person: a panel on a terminal, plain lines in a file or a pipe."""

from __future__ import annotations

import os
import sys
from typing import Final

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

BROKEN_PIPE: Final = 128 + 13
"""The exit code of a program whose reader has gone, as a shell shows it: 128, and the number of SIGPIPE."""


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

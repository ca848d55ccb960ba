"""How a message reaches a person: a panel on a terminal, plain lines in a file or a pipe."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.panel import Panel
from rich.text import Text


def out() -> Console:
    """Where results go."""
    return Console(file=sys.stdout, highlight=False, markup=False)


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

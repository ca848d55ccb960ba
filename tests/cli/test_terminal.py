"""One failure is one message: framed on a terminal, plain elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from meshwright.terminal import show_error


def shown(text: str, *, terminal: bool) -> str:
    written = io.StringIO()
    show_error(text, Console(file=written, force_terminal=terminal, width=40, highlight=False, markup=False))
    return written.getvalue()


def test_elsewhere_the_text_is_left_as_it_is() -> None:
    text = f"data.path: {'x' * 100} [bold]missing[/bold]\n  fix: a path"
    assert shown(text, terminal=False) == f"error: {text}\n"


def test_on_a_terminal_it_is_framed() -> None:
    panel = shown("data.path: missing [3]", terminal=True)
    assert "error" in panel.splitlines()[0]
    assert "data.path: missing [3]" in panel
    assert panel.count("╭") == panel.count("╯") == 1

"""What is printed is readable on any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from meshwright.terminal import Path, print_table


def lines_of(text: str, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=width, color_system=None).print(Path(text))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("blocks.0-125.attention, x", 30, ["blocks.0-125.attention, x"]),
        ("blocks.0-125.attention, x", 24, ["blocks.0-125.attention,", "  x"]),
        ("blocks.0-125.attention, x", 20, ["blocks.0-125.", "  attention, x"]),
        ("pp=2,schedule=interleaved_zero_bubble", 35, ["pp=2,", "  schedule=interleaved_zero_bubble"]),
        ("norm.feed_forward_norm", 15, ["norm.feed_", "  forward_norm"]),
    ],
)
def test_a_name_is_broken_at_its_dots_and_commas(text, width, lines):
    assert lines_of(text, width) == lines


def test_in_a_file_a_table_is_as_wide_as_it_is_and_ends_in_no_blanks():
    out = io.StringIO()
    table = Table("name", "words")
    table.add_row(Path("a." * 100), "few")
    print_table(table, Console(file=out, width=40))
    assert "a." * 100 in out.getvalue()
    assert all(line == line.rstrip() for line in out.getvalue().splitlines())

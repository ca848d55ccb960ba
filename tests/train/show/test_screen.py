"""What a person sees of a run, on a terminal and in a file."""

from __future__ import annotations

import io
import re
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from meshwright.train.show.record import Summary
from meshwright.train.show.run_folder import RunFolder
from meshwright.train.show.screen import COLUMNS, LINES, Screen, short

from .records import record

CONTROL = re.compile(r"\x1b")
SUMMARY = Summary(loss=(9.0, 3.0), validation_loss=(8.5, 4.5), tokens=1_234_567, seconds=100.0)


def screen(total: int, *, terminal: bool, width: int = 80) -> tuple[Screen, io.StringIO]:
    shown = io.StringIO()
    return Screen(Console(file=shown, force_terminal=terminal, width=width), total), shown


def rows(shown: str) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in shown.splitlines()]


def test_the_table_fits_in_80_columns() -> None:
    assert sum(width for _, width, _ in COLUMNS) <= 80
    crowded = record(1_000_000, loss=12.3456, validation_loss=12.3456)
    assert all(len(show(crowded)) < width or name == "step" for name, width, show in COLUMNS)


def test_a_file_gets_plain_lines_now_and_then_and_every_validation() -> None:
    running, shown = screen(1000, terminal=False)
    with running:
        for step in range(1, 1001):
            running.update(record(step, validation_loss=2.5 if step % 125 == 0 else None))
    head, *body = rows(shown.getvalue())
    assert " ".join(head) == " ".join(name for name, _, _ in COLUMNS)
    steps = [int(row[0]) for row in body]
    assert steps == sorted({1, 1000, *range(0, 1001, 50), *range(0, 1001, 125)} - {0})
    assert len(steps) <= LINES + 1 + 8
    assert body[0] == ["1", "2.0000", "0.500", "3.00e-04", "12.3k", "1.50", "GiB"]
    assert body[-1] == ["1000", "2.0000", "2.5000", "0.500", "3.00e-04", "12.3k", "1.50", "GiB"]
    assert not CONTROL.search(shown.getvalue())


@pytest.mark.parametrize("terminal", [True, False])
def test_the_last_step_stays_on_the_screen_also_of_a_run_that_fails(terminal: bool) -> None:
    running, shown = screen(1000, terminal=terminal)
    with suppress(ValueError), running:
        for step in range(1, 13):
            running.update(record(step))
        raise ValueError
    assert re.search(r"^ +12 +2\.0000", shown.getvalue().splitlines()[-1].rpartition("\x1b[2K")[2])


def test_a_terminal_shows_the_moment_with_the_latest_validation() -> None:
    running, shown = screen(40, terminal=True)
    with running:
        running.update(record(1, validation_loss=7.25))
        running.update(record(10))
        running._live.refresh()
    moment = shown.getvalue()
    assert re.search(r" 10 +2\.0000 +7\.2500", moment)
    assert "step 10 of 40" in moment
    assert "25%" in moment


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int, tmp_path: Path) -> None:
    running, shown = screen(40, terminal=True, width=width)
    running.header({"model": "a " * 100, "run": "x" * 100})
    with running:
        running.update(record(1, validation_loss=7.25))
        running._live.refresh()
    running.end(SUMMARY, RunFolder.create(str(tmp_path), "run"))
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()))
    assert max(map(len, lines)) <= width


def test_the_header_is_a_panel_on_a_terminal_and_a_line_each_in_a_file() -> None:
    what = {"model": "llama3 " * 20, "mesh": "dp 2 x tp 2"}
    running, shown = screen(1, terminal=True)
    running.header(what)
    assert shown.getvalue().count("╭") == 1
    running, shown = screen(1, terminal=False)
    running.header(what)
    assert shown.getvalue() == f"model  {'llama3 ' * 20}\nmesh   dp 2 x tp 2\n"


def test_the_end_says_how_it_went_and_what_there_is(tmp_path: Path) -> None:
    folder = RunFolder.create(str(tmp_path), "run")
    folder.append({"step": 1})
    running, shown = screen(1, terminal=False)
    running.end(SUMMARY, folder)
    assert [line.split(None, 1) for line in shown.getvalue().splitlines() if line] == [
        ["loss", "9.0000 -> 3.0000"],
        ["validation", "8.5000 -> 4.5000"],
        ["trained", "1.23M tokens in 0:01:40, 12.3k tokens/s"],
        ["run", str(folder.path)],
        ["files", "logs/  metrics.jsonl"],
    ]


def test_the_end_of_a_run_without_validation_does_not_speak_of_it(tmp_path: Path) -> None:
    running, shown = screen(1, terminal=False)
    running.end(Summary(loss=(1.0, 1.0), validation_loss=None, tokens=10, seconds=0.0), RunFolder(tmp_path))
    assert "validation" not in shown.getvalue()


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"),
        (949.6, "950"),
        (999.6, "1000"),
        (1000, "1k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_999, "1000k"),
        (1.2345e6, "1.23M"),
        (3.2e9, "3.2G"),
        (15e12, "15T"),
    ],
)
def test_counts_are_short(number: float, shown: str) -> None:
    assert short(number) == shown
    assert len(short(number)) <= 5


@pytest.mark.parametrize("terminal", [False, True])
def test_a_note_stands_between_the_rows_and_is_not_cut(terminal: bool) -> None:
    running, shown = screen(2, terminal=terminal, width=40)
    said = f"saved step-1, {'very ' * 12}large"
    with running:
        running.update(record(1, validation_loss=2.5))
        running.note(said)
        running.update(record(2, validation_loss=2.5))
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
    lines = [line for line in plain.splitlines() if "saved" in line or "2.5000" in line]
    assert any(line.rstrip().endswith(said) for line in lines)
    first, noted, last = (plain.index(word) for word in ("  1  ", "saved", "      2  "))
    assert first < noted < last

"""What a person sees while data is prepared."""

from __future__ import annotations

import io

from rich.console import Console

from meshwright.train.show.progress import Preparation


def shown(*, terminal: bool, reports: list[tuple[str, float]]) -> str:
    written = io.StringIO()
    with Preparation(Console(file=written, force_terminal=terminal, width=80)) as preparation:
        for stage, share in reports:
            preparation.report(stage, share)
    return written.getvalue()


def test_a_file_gets_a_line_a_quarter() -> None:
    shares = [share / 100 for share in range(101)]
    reports = [(stage, share) for stage in ("reading", "counting") for share in shares]
    assert shown(terminal=False, reports=reports).splitlines() == [
        f"{stage}: {share}%" for stage in ("reading", "counting") for share in (0, 25, 50, 75, 100)
    ]


def test_a_terminal_gets_a_bar_a_stage() -> None:
    written = shown(terminal=True, reports=[("reading", 0.5), ("reading", 1.0), ("counting", 0.25)])
    last = written.rpartition("reading")[2]
    assert "100%" in last
    assert "counting" in last
    assert "25%" in last


def test_where_nothing_is_prepared_nothing_is_said() -> None:
    assert shown(terminal=False, reports=[]) == ""

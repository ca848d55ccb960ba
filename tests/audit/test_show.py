"""A report as a person reads it, and as a program does."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from meshwright.audit import document, show
from meshwright.audit.show import size
from tests.audit.recipes import FOUR, judged, recipe


def text_of(report, **terminal):
    out = io.StringIO()
    show(report, Console(file=out, highlight=False, markup=False, **terminal))
    return out.getvalue()


RIGHT = judged(recipe(dp_shard=2, tp=2))
WRONG = judged(recipe(*(fault for fault, _ in FOUR), dp_shard=2, tp=2))


def test_the_verdict_stands_first():
    assert text_of(RIGHT).startswith(
        "mine on dp_shard 2 x tp 2 = 4 ranks: right, the types of a whole step on rank 0\n"
    )
    assert text_of(WRONG).startswith("mine on dp_shard 2 x tp 2 = 4 ranks: wrong, 4 problems\n")


def test_every_problem_is_shown_with_its_fix():
    shown = text_of(WRONG)
    for number, problem in enumerate(WRONG.problems, 1):
        assert f"{number}. {problem.where}: {problem.what}" in shown
        assert f"   fix: {problem.fix}" in shown


def on_a_terminal(width):
    return {"force_terminal": True, "width": width, "color_system": None}


@pytest.mark.parametrize("terminal", [{}, on_a_terminal(100)])
def test_the_table_fits_a_hundred_columns(terminal):
    table = text_of(RIGHT, **terminal).splitlines()[1 + len(RIGHT.believed) :]
    assert all(len(line) <= 100 for line in table)
    for row in RIGHT.traffic:
        assert any(f"  {row.module}, {row.what}" in line for line in table)


LONG = "blocks.0-125.feed_forward.routed.experts_of_all"


def with_a_long_name():
    traffic = [replace(row, module=LONG) for row in RIGHT.traffic]
    return replace(RIGHT, traffic=traffic)


def test_a_narrow_terminal_breaks_names_at_their_dots():
    shown = text_of(with_a_long_name(), **on_a_terminal(80))
    assert all(len(line) <= 80 for line in shown.splitlines())
    for part in ("blocks.0-125.", "feed_forward.", "routed.", "experts_of_", "all,"):
        assert any(part in line for line in shown.splitlines())


def test_a_file_has_whole_names_and_no_blanks_at_the_ends_of_lines():
    lines = text_of(with_a_long_name(), width=80).splitlines()
    assert any(line.startswith(f"   {LONG}, ") for line in lines)
    assert [line for line in lines if line != line.rstrip()] == []


def test_the_document_has_all_of_it():
    right, wrong = json.loads(document(RIGHT)), json.loads(document(WRONG))
    assert (right["verdict"], wrong["verdict"]) == ("right", "wrong")
    assert (right["mesh"], right["world"], right["judged_ranks"]) == ("dp_shard 2 x tp 2", 4, [0])
    assert [problem["where"] for problem in wrong["problems"]] == [problem.where for problem in WRONG.problems]
    assert right["problems"] == []
    assert sum(row["sent_forward"] for row in right["collectives"]) == sum(row.sent_forward for row in RIGHT.traffic)
    assert set(right["collectives"][0]) == {
        "module",
        "what",
        "axis",
        "count",
        "forward",
        "backward",
        "sent_forward",
        "sent_backward",
    }


def test_what_no_rule_sees_is_told_with_its_reason():
    told = [line for line in text_of(RIGHT).splitlines() if line.startswith("taken on trust: ")]
    assert len(told) == len(RIGHT.believed)
    assert told[0] == (
        "taken on trust: embedding: V on axis 'tp' is P (a rank looks up the rows that it holds, "
        "and gives zeros for the rest)"
    )
    trusted = json.loads(document(RIGHT))["trusted"]
    assert [each["where"] for each in trusted] == [each.where for each in RIGHT.believed]
    assert {each["where"] for each in trusted} == {"embedding", "CrossEntropy"}
    assert all(each["reason"] for each in trusted)


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (3 << 30, "3 GiB"), (1 << 62, "4.194e+06 TiB")]
)
def test_bytes_in_words(count, words):
    assert size(count) == words

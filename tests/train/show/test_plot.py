"""The curve shows what was measured, whatever was measured."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.train.show.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, loss_svg, thin, ticks
from meshwright.train.show.record import StepRecord

from .records import record

SVG = "{http://www.w3.org/2000/svg}"


def parsed(records: list[StepRecord]) -> ElementTree.Element:
    return ElementTree.fromstring(loss_svg(records))


def lines(svg: ElementTree.Element, name: str) -> list[list[tuple[float, float]]]:
    """The points of each line of that name, in pixels."""
    found = [line for line in svg.iter(f"{SVG}polyline") if line.get("class") == name]
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())] for line in found
    ]


def texts(svg: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in svg.iter(f"{SVG}text")]


def test_losses_become_heights_and_steps_become_widths() -> None:
    (line,) = lines(parsed([record(step, loss=loss) for step, loss in ((1, 6.0), (2, 4.0), (3, 2.0))]), "training")
    assert line == [
        (LEFT, TOP),
        ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2),
        (WIDTH - RIGHT, HEIGHT - BOTTOM),
    ]


def test_axes_and_curves_are_named() -> None:
    shown = texts(parsed([record(1, loss=4.0, validation_loss=5.0), record(2000, loss=2.0)]))
    assert {"step", "loss (nats/token)", "training", "validation", "2,000", "2", "5"} <= set(shown)
    assert "validation" not in texts(parsed([record(1), record(2)]))


def test_each_validation_is_a_point() -> None:
    svg = parsed([record(step, validation_loss=3.0 if step % 2 else None) for step in range(1, 8)])
    assert len([point for point in svg.iter(f"{SVG}circle") if point.get("class") == "validation"]) == 4


def test_a_loss_that_is_not_finite_leaves_a_gap() -> None:
    svg = parsed([record(step, loss=math.nan if step in (4, 5) else 2.0) for step in range(1, 10)])
    assert [len(line) for line in lines(svg, "training")] == [3, 4]


@pytest.mark.parametrize(
    "records", [[], [record(1, loss=math.nan)], [record(1, loss=math.inf, validation_loss=math.nan)]]
)
def test_where_there_is_nothing_to_show_it_says_so(records: list[StepRecord]) -> None:
    assert texts(parsed(records)) == ["no loss to show"]


@given(st.lists(st.tuples(st.floats(width=32), st.none() | st.floats(width=32)), max_size=30))
def test_any_losses_give_a_picture_within_its_frame(losses: list[tuple[float, float | None]]) -> None:
    svg = parsed([record(step, loss=loss, validation_loss=other) for step, (loss, other) in enumerate(losses, 1)])
    for line in (*lines(svg, "training"), *lines(svg, "validation")):
        for x, y in line:
            assert LEFT <= x <= WIDTH - RIGHT
            assert TOP <= y <= HEIGHT - BOTTOM


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.integers(2, 10))
def test_ticks_enclose_the_values_evenly(low: float, width: float, most: int) -> None:
    high = low + width
    marks = ticks(low, high, most)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert marks[0] <= low + slack
    assert marks[-1] >= high - slack
    assert 2 <= len(marks) <= most + 2
    gaps = [after - before for before, after in pairwise(marks)]
    assert max(gaps) - min(gaps) <= slack


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [(2.1, 8.3, [2, 4, 6, 8, 10]), (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (3, 3, [2.4, 2.6, 2.8, 3.0, 3.2, 3.4, 3.6])],
)
def test_ticks_are_round(low: float, high: float, marks: list[float]) -> None:
    assert ticks(low, high, 6) == pytest.approx(marks)


def test_a_long_line_keeps_its_extremes() -> None:
    points = [(float(step), math.sin(step)) for step in range(10_000)]
    points[5000] = (5000.0, 9.0)
    kept = thin(points, 100)
    assert len(kept) <= 202
    assert kept == sorted(kept)
    assert {points[0], points[5000], points[-1]} <= set(kept)
    assert thin(points[:150], 100) == points[:150]

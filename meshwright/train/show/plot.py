"""The curve of a run's loss as an SVG picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.train.show.record import StepRecord

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 36, 48, 52  # margins around the plotting area

Point = tuple[float, float]
"""Step, loss."""

STYLE = """
  .card { fill: #ffffff; stroke: #d8dee4; }
  text { font: 12px system-ui, sans-serif; fill: #57606a; }
  .name { font-size: 13px; fill: #24292f; }
  .grid { stroke: #eaeef2; }
  .axis { stroke: #8c959f; }
  .training { stroke: #2f6fdb; }
  .validation { stroke: #d9480f; }
  polyline { fill: none; stroke-linejoin: round; }
  polyline.training { stroke-width: 1.25; }
  polyline.validation { stroke-width: 1.75; }
  circle.training { fill: #2f6fdb; }
  circle.validation { fill: #d9480f; stroke: #ffffff; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #30363d; }
    text { fill: #9198a1; }
    .name { fill: #e6edf3; }
    .grid { stroke: #21262d; }
    .axis { stroke: #656c76; }
    .training { stroke: #6ea8fe; }
    .validation { stroke: #ffa657; }
    circle.training { fill: #6ea8fe; }
    circle.validation { fill: #ffa657; stroke: #0d1117; }
  }"""


def loss_svg(records: Sequence[StepRecord]) -> str:
    """Training loss as a thin line and validation loss as points, over steps; in nats a token.

    A loss that is not finite leaves a gap. Readable on light and dark pages, whichever the reader prefers.
    """
    training = [(float(record.step), record.loss) for record in records]
    validation = [(float(r.step), r.validation_loss) for r in records if r.validation_loss is not None]
    finite = [point for point in (*training, *validation) if math.isfinite(point[1])]
    body = list(_chart(training, validation, finite)) if finite else [_text("no loss to show", WIDTH / 2, HEIGHT / 2)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
            ' role="img" aria-label="loss over steps">',
            f"<style>{STYLE}\n</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
            *body,
            "</svg>\n",
        ]
    )


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` -> pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(low: float, high: float, most: int) -> list[float]:
    """About `most` round values that enclose `low` to `high`, apart by 1, 2 or 5 times a power of 10."""
    size = max(1.0, abs(low), abs(high))
    if high - low <= 1e-9 * size:
        room = max(0.5, 1e-6 * size)
        low, high = low - room, high + room
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    gap = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / gap + 1e-9), math.ceil(high / gap - 1e-9)
    return [index * gap for index in range(first, last + 1)]


def thin(points: Sequence[Point], columns: int) -> list[Point]:
    """The least and the greatest point of each of `columns` stretches: what a line that narrow can show."""
    if len(points) <= 2 * columns:
        return list(points)
    kept: list[Point] = [points[0]]
    for column in range(columns):
        stretch = points[column * len(points) // columns : (column + 1) * len(points) // columns]
        kept += sorted({min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])})
    return [*kept, points[-1]]


def _chart(training: Sequence[Point], validation: Sequence[Point], finite: Sequence[Point]) -> Iterator[str]:
    steps = [step for step, _ in finite]
    losses = ticks(min(loss for _, loss in finite), max(loss for _, loss in finite), 6)
    first, last = min(steps), max(steps)
    marks = [mark for mark in ticks(first, last, 8) if mark == round(mark) and first <= mark <= last]
    x = Scale(first, last if last > first else first + 1, LEFT, WIDTH - RIGHT)
    y = Scale(losses[0], losses[-1], HEIGHT - BOTTOM, TOP)

    for loss in losses:
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}"/>'
        yield _text(f"{loss:.6g}", LEFT - 8, y(loss) + 4, anchor="end")
    floor = HEIGHT - BOTTOM
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>'
    for mark in marks:
        yield f'<line class="axis" x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{floor}" y2="{floor + 5}"/>'
        yield _text(f"{mark:,.0f}", x(mark), floor + 20)
    yield _text("step", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12)
    yield _text("loss (nats/token)", LEFT, TOP - 22, anchor="start")

    for name, points in (("training", training), ("validation", validation)):
        for run in _runs(points):
            yield _line(name, run, x, y)
    for step, loss in validation:
        if math.isfinite(loss):
            yield f'<circle class="validation" cx="{x(step):.1f}" cy="{y(loss):.1f}" r="3"/>'
    yield from _legend(("training", "validation") if validation else ("training",))


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """The stretches between losses that are not finite."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _line(name: str, points: Sequence[Point], x: Scale, y: Scale) -> str:
    if len(points) == 1:
        step, loss = points[0]
        return f'<circle class="{name}" cx="{x(step):.1f}" cy="{y(loss):.1f}" r="2.5"/>'
    path = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in thin(points, WIDTH - LEFT - RIGHT))
    return f'<polyline class="{name}" points="{path}"/>'


def _legend(names: Sequence[str]) -> Iterator[str]:
    right = WIDTH - RIGHT
    for name in reversed(names):
        left = right - 7 * len(name) - 30
        yield f'<line class="{name}" stroke-width="2" x1="{left}" x2="{left + 22}" y1="{TOP - 26}" y2="{TOP - 26}"/>'
        yield f'<text class="name" x="{left + 28}" y="{TOP - 22}">{name}</text>'
        right = left - 16


def _text(text: str, x: float, y: float, *, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'

"""Every field of a config is a flag; a flag that is wrong is one clear error."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
import tyro

from meshwright.errors import ConfigError
from meshwright.flags import names, parse


@dataclass(kw_only=True)
class Shape(ABC):
    sides: int

    @abstractmethod
    def area(self) -> float: ...


@dataclass(kw_only=True)
class Stretch:
    factor: float = 2.0


@dataclass(kw_only=True)
class Square(Shape):
    sides: int = 4
    edge_length: float = 1.0
    """of each side"""
    stretch: Stretch | None = None

    def area(self) -> float:
        return self.edge_length**2


@dataclass(kw_only=True)
class Paint:
    kind: Literal["oil", "chalk"] = "oil"
    is_wet: bool = True
    layers: int | None = None
    colours: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Drawing:
    """A drawing."""

    shape: Shape
    frame: Annotated[Callable[[Shape], float], tyro.conf.Suppress] = field(default=lambda shape: shape.area())
    paint: Paint = field(default_factory=Paint)


def draw(*arguments: str, stretch: Stretch | None = None) -> Drawing:
    return parse(Drawing(shape=Square(stretch=stretch)), arguments, program="draw square")


def refusal(*arguments: str, stretch: Stretch | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        draw(*arguments, stretch=stretch)
    (problem,) = refused.value.problems
    assert problem.fix.startswith(("`draw square --help` lists the flags", problem.where))
    return str(problem)


def test_without_flags_the_config_is_equal() -> None:
    config = Drawing(shape=Square(edge_length=3.0), paint=Paint(kind="chalk"))
    assert parse(config, [], program="draw") == config


def test_flags_set_fields_at_every_depth_and_leave_the_given_config_alone() -> None:
    config = Drawing(shape=Square())
    parsed = parse(
        config, ["--paint.kind", "chalk", "--paint.layers", "3", "--paint.colours", "red", "blue"], program=""
    )
    assert parsed.paint == Paint(kind="chalk", layers=3, colours=("red", "blue"))
    assert config.paint == Paint()


def test_an_abstract_field_has_the_flags_of_what_it_holds() -> None:
    assert draw("--shape.edge-length", "2.5").shape == Square(edge_length=2.5)


@pytest.mark.parametrize("flag", ["--shape.edge-length", "--shape.edge_length"])
def test_dashes_and_underscores_are_one(flag: str) -> None:
    assert draw(flag, "2").shape == Square(edge_length=2.0)


def test_a_switch_is_set_and_unset() -> None:
    assert draw("--paint.no-is-wet").paint.is_wet is False
    assert draw("--paint.is-wet").paint.is_wet is True


def test_a_config_that_may_be_absent_has_flags_where_it_is_there() -> None:
    assert draw("--shape.stretch.factor", "3", stretch=Stretch()).shape == Square(stretch=Stretch(factor=3.0))
    assert refusal("--shape.stretch.factor", "3").startswith("--shape.stretch.factor: no such flag")


def test_a_suppressed_function_is_no_flag_and_is_kept() -> None:
    assert draw("--shape.edge-length", "3").frame(Square(edge_length=4.0)) == 16.0
    assert refusal("--frame", "x").startswith("--frame: no such flag")


def test_names_are_the_flags_that_are_accepted() -> None:
    listed = list(names(Drawing(shape=Square())))
    assert listed == [
        "--shape.sides",
        "--shape.edge-length",
        "--paint.kind",
        "--paint.is-wet",
        "--paint.no-is-wet",
        "--paint.layers",
        "--paint.colours",
    ]


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--shape.edge-lenght", "--shape.edge-length"),
        ("--shape.edge_lengths=3", "--shape.edge-length"),
        ("--paint.no-wet", "--paint.no-is-wet"),
        ("--kind", "--paint.kind"),
        ("--factor", "--shape.stretch.factor"),
    ],
)
def test_an_unknown_flag_names_the_nearest(flag: str, meant: str) -> None:
    said = refusal(flag, "3", stretch=Stretch())
    assert said.startswith(f"{flag.partition('=')[0].replace('_', '-')}: no such flag")
    assert f", did you mean {meant!r}?\n" in said


def test_a_value_without_a_flag() -> None:
    assert refusal("stray").startswith("stray: a value without a flag\n")


def test_a_value_behind_a_switch() -> None:
    said = refusal("--paint.is-wet", "yes")
    assert said.startswith("--paint.is-wet: 'yes' follows it, and a switch takes no value\n")
    assert "fix: --paint.is-wet, or --paint.no-is-wet" in said


def test_all_values_that_do_not_fit_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        draw("--paint.kind", "water", "--shape.sides=-", "--paint.colours", "red")
    assert [problem.where for problem in refused.value.problems] == ["--paint.kind", "--shape.sides"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--shape.sides", "many"), ("'many' is not a whole number", "fix: --shape.sides with a whole number")),
        (("--shape.edge_length=long",), ("'long' is not a number", "fix: --shape.edge-length with a number")),
        (("--paint.kind", "water"), ("'water'", "fix: --paint.kind oil or chalk")),
        (("--paint.kind", "chark"), ("'chark', did you mean 'chalk'?", "fix: --paint.kind oil or chalk")),
        (("--paint.layers", "few"), ("'few'", "fix: --paint.layers with a whole number or None")),
        (("--shape.sides",), ("no value follows it", "fix: --shape.sides with a whole number")),
        (("--shape.sides", "--paint.is-wet"), ("no value follows it",)),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bad_value_names_flag_and_value(
    arguments: tuple[str, ...],
    said: tuple[str, ...],
    encoding: str,
    is_terminal: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(out, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stdout", out)
    refused = refusal(*arguments)
    assert refused.startswith(f"{arguments[0].partition('=')[0].replace('_', '-')}: ")
    assert all(part in refused for part in said)
    assert len(refused.splitlines()) == 2
    assert not set("│╭╮╰╯─+|\x1b") & set(refused)
    assert "---" not in refused


def test_help_shows_flags_with_the_values_of_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse(Drawing(shape=Square(edge_length=12.5)), ["--help"], program="draw square")
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert "usage: draw square" in shown
    assert "--shape.edge-length FLOAT" in shown
    assert "of each side (default: 12.5)" in shown
    assert "--frame" not in shown

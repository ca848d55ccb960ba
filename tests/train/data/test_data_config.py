"""Values that make no sense are refused before any file is looked at."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import tyro

from meshwright.train.data import DataConfig
from meshwright.train.data.config import check


def test_the_defaults_are_right():
    assert check(DataConfig()) == []


@pytest.mark.parametrize(
    ("values", "where", "what"),
    [
        ({"validation": 1.0}, "data.validation", "1.0 is not in [0, 1)"),
        ({"validation": -0.1}, "data.validation", "-0.1 is not in [0, 1)"),
        ({"validation": math.nan}, "data.validation", "nan is not in [0, 1)"),
        ({"vocab": 256}, "data.vocab", "256 is too small"),
        ({"seed": -1}, "data.seed", "-1 is negative"),
    ],
)
def test_each_wrong_value_is_one_problem(values, where, what):
    [problem] = check(DataConfig(**values))
    assert (problem.where, problem.what) == (where, what)
    assert problem.fix


def test_all_wrong_values_are_found_at_once():
    assert [problem.where for problem in check(DataConfig(vocab=2, validation=2, seed=-2))] == [
        "data.vocab",
        "data.validation",
        "data.seed",
    ]


def test_the_size_of_a_given_tokenizer_is_its_own():
    assert check(DataConfig(tokenizer="tokenizer.json", vocab=2)) == []


def test_every_field_has_its_help_on_the_command_line(capsys):
    with pytest.raises(SystemExit):
        tyro.cli(DataConfig, args=["--help"])
    text = capsys.readouterr().out
    for field in fields(DataConfig):
        assert f"--{field.name}" in text
    for words in ("standard", "tokenizer.json", "Size of the tokenizer", "holds the text", "held out", "Order of the"):
        assert words in text


def test_the_command_line_fills_it():
    config = tyro.cli(DataConfig, args=["--path", "a.txt", "b", "--validation", "0.1", "--cache", "here"])
    assert config == DataConfig(path=("a.txt", "b"), validation=0.1, cache="here")

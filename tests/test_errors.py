"""An error is data that is rendered in one place; a wrong name is answered with the nearest right one."""

from __future__ import annotations

import pickle

import pytest

from meshwright.errors import (
    ConfigError,
    DataError,
    MeshwrightError,
    Problem,
    RunError,
    SpmdTypeError,
    nearest,
    nearest_path,
)


def test_a_problem_says_where_what_why_and_how_to_put_it_right():
    problem = Problem(where="tp", what="3 ranks", why="heads are whole", fix="tp = 2")
    assert str(problem) == "tp: 3 ranks\n  why: heads are whole\n  fix: tp = 2"
    assert str(Problem(where="", what="3 ranks")) == "3 ranks"


def test_one_problem_is_shown_as_it_is_and_several_are_counted():
    one, other = Problem(where="a", what="1"), Problem(where="b", what="2")
    assert str(ConfigError(one)) == "a: 1"
    assert str(ConfigError([one, other])) == "2 problems\n1. a: 1\n2. b: 2"
    assert ConfigError(problem for problem in (one, other)).problems == (one, other)


def test_problems_that_differ_in_the_number_of_a_layer_alone_are_told_once():
    layers = [Problem(where=f"blocks.{layer}.wq", what="3 heads") for layer in (0, 1, 2, 5)]
    other = Problem(where="blocks.1.wq", what="4 heads")
    assert str(ConfigError(layers[:3])) == "blocks.0-2.wq: 3 heads"
    assert str(ConfigError([*layers, other])) == "2 problems\n1. blocks.0,1,2,5.wq: 3 heads\n2. blocks.1.wq: 4 heads"
    assert len(ConfigError(layers).problems) == 4


@pytest.mark.parametrize("kind", [ConfigError, DataError, SpmdTypeError, RunError])
def test_every_error_has_one_root_and_survives_a_pickle(kind):
    error = kind(Problem(where="a", what="1"))
    assert isinstance(error, MeshwrightError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.problems == error.problems


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("wieght", "weight"),
        ("x", "x_BLD"),
        ("x_BLDH", "x_BLD"),
        ("w", "weight"),
        ("mask_", "mask"),
        ("tokens", None),
        ("", None),
    ],
)
def test_the_nearest_name(name, meant):
    found = nearest(name, ["x_BLD", "weight", "mask"])
    assert found == (f", did you mean {meant!r}?" if meant else "")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("note.txt", "notes.txt"),
        ("notes.md", "notes.txt"),
        ("boks/one.txt", "books/one.txt"),
        ("boks/two.txt", "books"),
        ("books/oen.txt", None),
        ("nothing.txt", None),
        ("nothere.json", None),
        ("books/onee.txt", "books/one.txt"),
    ],
)
def test_a_path_that_is_nearly_there_is_named_so_that_it_can_be_pasted(path, meant, tmp_path, monkeypatch):
    (tmp_path / "books").mkdir()
    for name in ("out1.txt", "container_info.json", "notes.txt", "books/one.txt"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    assert nearest_path(path) == (f", did you mean {meant!r}?" if meant else "")
    assert nearest_path(str(tmp_path / path)) == (f", did you mean {str(tmp_path / meant)!r}?" if meant else "")

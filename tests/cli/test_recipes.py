"""A recipe is found by name or by path, or one error says what is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright import recipes
from meshwright.errors import ConfigError
from meshwright.train.config import TrainConfig

MINE = """
from meshwright.models.llama3 import llama3
from meshwright.train.config import TrainConfig, TrainingConfig

config = TrainConfig(model=llama3("debug"), training=TrainingConfig(steps=7))
"""


def own(folder: Path, text: str, name: str = "mine.py") -> str:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def refusal(name_or_path: str) -> str:
    with pytest.raises(ConfigError) as refused:
        recipes.find(name_or_path)
    assert len(refused.value.problems) == 1
    return str(refused.value)


@pytest.mark.parametrize("name", recipes.names())
def test_every_shipped_recipe_is_found_and_summarised(name: str) -> None:
    assert isinstance(recipes.find(name), TrainConfig)
    assert recipes.summary(name).endswith(".")
    assert recipes.title(name) == name


def test_an_own_recipe_is_found_by_path(tmp_path: Path) -> None:
    assert recipes.find(own(tmp_path, MINE)).training.steps == 7
    assert recipes.title(str(tmp_path / "mine.py")) == "mine"


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path, MINE)
    monkeypatch.chdir(tmp_path)
    assert recipes.find("./mine.py").training.steps == recipes.find("mine.py").training.steps == 7


def test_a_recipe_imports_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    own(tmp_path, "STEPS = 9", name="beside_the_recipe.py")
    file = own(tmp_path, "from beside_the_recipe import STEPS\n" + MINE.replace("steps=7", "steps=STEPS"))
    assert recipes.find(file).training.steps == 9


def test_a_recipe_may_define_dataclasses(tmp_path: Path) -> None:
    text = """
from __future__ import annotations
from dataclasses import dataclass
from meshwright.models.llama3 import Llama3, llama3
from meshwright.train.config import TrainConfig

@dataclass(kw_only=True)
class Mine(Llama3):
    extra: int = 3

config = TrainConfig(model=Mine(**vars(llama3("debug"))))
"""
    assert vars(recipes.find(own(tmp_path, text)).model)["extra"] == 3


def test_an_unknown_name_names_the_nearest_and_all() -> None:
    said = refusal("llama3_debgu")
    assert "did you mean 'llama3_debug'?" in said
    assert all(name in said for name in recipes.names())


def test_a_missing_file_names_the_nearest_beside_it(tmp_path: Path) -> None:
    own(tmp_path, MINE)
    missing = tmp_path / "mien.py"
    assert f"{missing} does not exist, did you mean '{tmp_path / 'mine.py'}'?" in refusal(str(missing))


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    assert f"{tmp_path} is a folder" in refusal(str(tmp_path))


def test_a_file_of_another_kind_is_no_recipe(tmp_path: Path) -> None:
    assert "not a Python file" in refusal(own(tmp_path, MINE, name="mine.yaml"))


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("x = 1\ny = x / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("def f():\n    return unknown\n\nf()\n", 2, "NameError: name 'unknown' is not defined"),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError"),
        ("x = 1\nif x\n", 2, "SyntaxError: expected ':'"),
        ("import not_a_module\n", 1, "ModuleNotFoundError: No module named 'not_a_module'"),
    ],
)
def test_a_file_that_fails_is_shown_with_its_line_and_cause(tmp_path: Path, text: str, line: int, cause: str) -> None:
    file = own(tmp_path, text)
    assert re.fullmatch(rf"{re.escape(file)}:{line}: the recipe fails: {re.escape(cause)}.*", refusal(file))


def test_what_meshwright_refuses_in_a_recipe_keeps_its_reason(tmp_path: Path) -> None:
    file = own(tmp_path, "from meshwright.comm.grid import ParallelismDims\nParallelismDims(tp=0)\n")
    said = refusal(file)
    assert said.startswith(f"{file}:2: parallel.tp: 0 ranks")
    assert "fix: --parallel.tp from 1 to 1000000" in said


def test_a_file_without_config(tmp_path: Path) -> None:
    assert "sets no `config`" in refusal(own(tmp_path, "conf = 3"))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("config = {}", "a dict"),
        ("from meshwright.train.config import TrainConfig as config", "the class TrainConfig"),
    ],
)
def test_config_of_another_type(tmp_path: Path, text: str, kind: str) -> None:
    assert f"`config` is {kind}, not a TrainConfig" in refusal(own(tmp_path, text))

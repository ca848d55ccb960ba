"""The folder of a run: never shared, and readable by any program."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from meshwright import recipes
from meshwright.errors import ConfigError
from meshwright.models.spec import ModelSpec
from meshwright.train.show.run_folder import VARIABLE, RunFolder

NOW = datetime(2031, 2, 3, 4, 5, 6)


def own_layouts(spec: ModelSpec, modules: object, plan: object) -> None:
    """Stands in for layouts that a recipe attaches itself."""


def test_the_name_says_recipe_and_time(tmp_path: Path) -> None:
    folder = RunFolder.create(str(tmp_path / "runs"), "mine", NOW)
    assert folder.path == tmp_path / "runs" / "mine-20310203-040506"
    assert folder.logs.is_dir()


def test_folders_made_in_the_same_second_differ(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: RunFolder.create(str(tmp_path), "mine", NOW).path.name, range(16)))
    assert sorted(made) == sorted(["mine-20310203-040506", *(f"mine-20310203-040506-{n}" for n in range(1, 16))])


def test_a_folder_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"output\.folder: no folder can be made in .*Not a directory"):
        RunFolder.create(str(tmp_path / "file" / "runs"), "mine")


def test_ranks_inherit_the_folder_of_their_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert RunFolder.inherited() is None
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert RunFolder.inherited() == RunFolder(tmp_path)


def test_the_config_is_written_with_all_it_says(tmp_path: Path) -> None:
    config = recipes.find("llama3_debug")
    folder = RunFolder(tmp_path)
    folder.write_config(replace(config, layouts=own_layouts))
    written = json.loads(folder.config.read_text())
    assert written["model"] == {"type": "meshwright.models.llama3.Llama3", **vars(config.model)}
    assert written["layouts"] == f"{__name__}.own_layouts"
    for section in ("parallel", "training", "optimizer", "output", "launch"):
        assert written[section] == vars(getattr(config, section))
    assert written["data"] == {**vars(config.data), "path": list(config.data.path)}


def test_records_are_lines_that_any_json_reader_takes(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append({"step": 1, "loss": 2.5, "validation_loss": None})
    folder.append({"step": 2, "loss": math.nan, "validation_loss": -math.inf})

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in folder.metrics.read_text().splitlines()]
    assert lines == [
        {"step": 1, "loss": 2.5, "validation_loss": None},
        {"step": 2, "loss": "nan", "validation_loss": "-inf"},
    ]
    assert math.isnan(float(lines[1]["loss"]))

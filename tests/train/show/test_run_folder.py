"""The folder of a run: never shared, and readable by any program."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import pytest

from meshwright import recipes
from meshwright.errors import ConfigError
from meshwright.models.spec import ModelSpec
from meshwright.train.show.run_folder import VARIABLE, RunFolder

from .records import record

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
    for section in ("parallel", "training", "optimizer", "checkpoint", "output", "launch"):
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


def test_a_run_that_goes_on_has_the_records_up_to_its_checkpoint_and_no_others(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.rewind(0) == []
    records = [record(step, validation_loss=2.5 if step == 1 else None) for step in (1, 2, 3, 4)]
    for one in records:
        folder.append(asdict(one))
    with open(folder.metrics, "a") as file:
        file.write('{"step": 5, "lo')  # killed amid the line
    assert folder.rewind(3) == records[:3]
    assert [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()] == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_records_of_a_run_that_began_at_a_checkpoint_do_not_begin_with_the_first_step(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (51, 52, 53):
        folder.append(asdict(record(step)))
    assert [one.step for one in folder.rewind(52)] == [51, 52]


def test_a_run_that_goes_on_forgets_the_failures_of_its_earlier_start(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.logs.mkdir()
    folder.error(1).write_text("{}")
    folder.log(1).write_text("what was said stays")
    folder.go_on()
    assert not folder.has_failed
    assert folder.log(1).exists()

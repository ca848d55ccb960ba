"""The page on experts: what it shows is what comes, and its recipe is right."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from meshwright import cli, flags, recipes
from meshwright.comm.grid import ParallelismDims
from meshwright.train.assemble import run_dims
from meshwright.train.preflight import preflight
from meshwright.train.show.record import ExpertLoad
from tests.docs.fenced import blocks
from tests.docs.test_readme import joined, meshwright

PAGE = (Path(__file__).parents[2] / "docs" / "experts.md").read_text()
COMMANDS = [shlex.split(line)[1:] for language, text in blocks(PAGE) if language == "sh" for line in text.splitlines()]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a reader has saved the recipe."""
    (example,) = re.findall(r"<!-- example: mixture.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mixture.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_does_what_it_says(arguments, reader, capsys):
    word, recipe, *rest = arguments
    if word == "train":
        config = flags.parse(recipes.find(recipe), rest, program="meshwright train")
        preflight(config, run_dims(config).world)
    else:
        assert cli.main(arguments) == 0
        assert ": right, " in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["shown", "refused"])
def test_what_is_shown_is_what_comes(kind, reader):
    ((command, shown),) = re.findall(rf"<!-- {kind}: (.*?) -->\n```text\n(.*?)```", PAGE, re.DOTALL)
    ended = meshwright(*shlex.split(command)[1:], folder=reader)
    assert ended.returncode == {"shown": 0, "refused": 2}[kind]
    assert joined(f"$ {command}\n{ended.stdout}{ended.stderr}") == joined(shown)


ROWS = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| ([\d, ]+) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_ep_takes_tp_then_cp_then_a_part_of_dp_shard(row):
    dp_shard, cp, tp = map(int, row[:3])
    assert ParallelismDims(dp_shard=dp_shard, cp=cp, tp=tp).expert_degrees == list(map(int, row[3].split(", ")))


def test_the_fields_of_the_metrics_are_those_that_are_written():
    listed = re.search(r"\| field \| what it says.*?\n\n", PAGE, re.DOTALL)[0]
    assert re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE) == [field.name for field in fields(ExpertLoad)]

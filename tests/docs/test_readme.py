"""Every example of the README runs, and what it shows is what comes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright import flags, recipes
from meshwright.train.assemble import run_dims
from meshwright.train.preflight import preflight

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def example(name: str) -> str:
    """The code block that the comment `<!-- example: name -->` announces."""
    found = re.search(rf"<!-- example: {re.escape(name)} -->\n```\w*\n(.*?)```", README, re.DOTALL)
    assert found is not None, name
    return found[1]


def commands() -> list[list[str]]:
    """The arguments of every `meshwright` command, also under torchrun."""
    lines = [line for block in blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[line.index("meshwright") + 1 :] for line in words if "meshwright" in line]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a reader has saved the examples, and has text of their own."""
    for name in ("mine.py", "layouts.py", "mlp.py"):
        (tmp_path / name).write_text(example(name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def meshwright(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "meshwright", *arguments], cwd=folder, capture_output=True, text=True, timeout=240
    )


def test_there_are_commands_to_try():
    assert len(commands()) >= 6


@pytest.mark.parametrize("arguments", [line for line in commands() if "--help" not in line], ids=" ".join)
def test_every_command_is_one_that_could_start(arguments, reader):
    assert arguments[0] == "train"
    config = flags.parse(recipes.find(arguments[1]), arguments[2:], program="meshwright train")
    preflight(config, run_dims(config).world)


def test_the_layouts_example_changes_what_it_says(reader):
    config = recipes.find("./layouts.py")
    preflight(config, 4)
    assert config.layouts.__name__ == "layouts"


def test_the_types_alone(reader):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run([*torchrun, "mlp.py"], cwd=reader, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("{tp:S(1)}") == 2
    wrong = example("mlp.py").replace("src=spmd.P, dst=spmd.S(1)", "src=spmd.R, dst=spmd.S(1)")
    (reader / "mlp.py").write_text(wrong)
    ended = subprocess.run([*torchrun, "mlp.py"], cwd=reader, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "SpmdTypeError: mlp.py:" in ended.stderr


def test_the_first_recipe_learns(reader):
    ended = meshwright("train", "./mine.py", folder=reader)
    assert ended.returncode == 0, ended.stderr
    (run,) = (reader / "runs").iterdir()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validations = [record["validation_loss"] for record in records if record["validation_loss"] is not None]
    assert len(records) == 40
    assert validations[-1] < validations[0] - 1
    assert {"config.json", "metrics.jsonl", "loss.svg", "logs"} == {file.name for file in run.iterdir()}
    assert str(Path("runs") / run.name) in ended.stdout


def test_what_is_refused_is_refused_in_these_words(reader):
    command, shown = re.findall(r"<!-- refused: (.*?) -->\n```text\n(.*?)```", README, re.DOTALL)[0]
    ended = meshwright(*shlex.split(command)[1:], folder=reader)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == shown.partition("\n")[2]
    assert shown.startswith(f"$ {command}\n")
    assert not (reader / "runs").exists()

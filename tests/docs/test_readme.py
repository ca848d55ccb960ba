"""Every example of the README runs, and what it shows is what comes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright import cli, flags, recipes
from meshwright.train.assemble import run_dims
from meshwright.train.checkpoint.resume import expand
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


def commands_of(word: str) -> list[list[str]]:
    """What follows `meshwright train` or `meshwright check`, wherever the README says so."""
    return [rest for first, *rest in commands() if first == word and "--help" not in rest]


def joined(text: str) -> str:
    """The words of a text: where a terminal breaks its lines says nothing."""
    return " ".join(text.split())


def test_all_commands_are_tried():
    assert {first for first, *_ in commands()} == {"train", "check"}


@pytest.mark.parametrize("arguments", commands_of("train"), ids=" ".join)
def test_every_command_is_one_that_could_start(arguments, reader):
    config = flags.parse(recipes.find(arguments[0]), expand(arguments[1:]), program="meshwright train")
    preflight(config, run_dims(config).world)


@pytest.mark.parametrize("arguments", commands_of("check"), ids=" ".join)
def test_what_is_to_be_checked_is_right(arguments, reader, capsys):
    assert cli.main(["check", *arguments]) == 0
    shown = capsys.readouterr().out
    if "--json" in arguments:
        document = json.loads(shown)
        named = re.search(r"one JSON document with the same: (.*?)\. ", README)
        assert set(re.findall(r"`(\w+)`", named[1])) <= set(document)
        assert document["verdict"] == "right"
    else:
        assert ": right, " in shown.splitlines()[0]


def test_1024_ranks_are_1024_ranks(reader, capsys):
    (line,) = [line for block in blocks("sh") for line in block.splitlines() if "1024 ranks" in line]
    cli.main(shlex.split(line, comments=True)[1:])
    assert "= 1024 ranks: right" in capsys.readouterr().out


def test_what_check_prints_is_shown(reader):
    command, shown = re.findall(r"<!-- shown: (.*?) -->\n```text\n(.*?)```", README, re.DOTALL)[0]
    ended = meshwright(*shlex.split(command)[1:], folder=reader)
    assert (ended.returncode, ended.stderr) == (0, "")
    printed = [line.rstrip() for line in ended.stdout.rstrip().splitlines()]
    assert [f"$ {command}", *printed] == shown.splitlines()


def test_what_check_says_of_a_forgotten_sum_is_shown(reader, capsys):
    before, after, shown = re.findall(r"<!-- wrong: (.*?) / (.*?) -->\n```text\n(.*?)```", README, re.DOTALL)[0]
    assert f'`"weight": {after}`' in README
    assert before in example("layouts.py")
    (reader / "layouts.py").write_text(example("layouts.py").replace(before, after))
    assert cli.main(["check", "./layouts.py"]) == 1
    assert joined(f"$ meshwright check ./layouts.py\n{capsys.readouterr().out}").startswith(joined(shown))
    assert cli.main(["train", "./layouts.py"]) == 2
    assert not (reader / "runs").exists()


def test_what_parity_says_of_a_forgotten_sum_is_shown(reader):
    before, after, shown = re.findall(r"<!-- parity: (.*?) / (.*?) -->\n```text\n(.*?)```", README, re.DOTALL)[0]
    (reader / "layouts.py").write_text(example("layouts.py").replace(before, after))
    command = shown.splitlines()[0].removeprefix("$ ")
    ended = meshwright(*shlex.split(command)[1:], folder=reader)
    assert ended.returncode == 1
    assert _without_sizes(joined(f"$ {command}\n{ended.stdout}")) == _without_sizes(joined(shown))


def _without_sizes(text: str) -> str:
    """How large a rounding error is differs from machine to machine."""
    return re.sub(r"\d(\.\d)?e-\d\d", "SIZE", text)


def test_the_layouts_example_changes_what_it_says(reader):
    config = recipes.find("./layouts.py")
    preflight(config, 4)
    assert config.layouts.__name__ == "layouts"


def test_the_types_alone(reader):
    def ran() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "mlp.py"], cwd=reader, capture_output=True, text=True, timeout=120)

    (shown,) = re.findall(r"```text\n\$ python mlp\.py\n(.*?)```", README, re.DOTALL)
    ended = ran()
    assert ended.returncode == 1
    begins, ends = shown.split("  ...\n")
    assert ended.stderr.startswith(begins)
    assert ended.stderr.endswith(ends)
    (mended,) = re.findall(r"`(y \+ .*?)` is right", README)
    (reader / "mlp.py").write_text(example("mlp.py").replace("y + bias", mended))
    assert (ran().returncode, ran().stderr) == (0, "")


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

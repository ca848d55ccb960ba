"""`meshwright check`: what it says, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright import recipes
from meshwright.cli import main
from meshwright.train.launch import parent as launch
from meshwright.train.show.run_folder import VARIABLE

MINE = """
from dataclasses import replace

from meshwright.models.layouts import state
from meshwright.models.llama3 import Llama3
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig
from meshwright.types.kinds import S


def layouts(spec, modules, plan):
    spec.declare(modules, plan)
    for block in modules.blocks:
        declared = block.attention.wo.sharding_config
        block.attention.wo.sharding_config = replace(declared, state_shardings={"weight": state(S(0))})


config = TrainConfig(
    model=Llama3(dim=32, layers=3, heads=4, kv_heads=2, hidden=48, vocab=64),
    layouts=layouts,
    parallel=ParallelConfig(tp=2),
    training=TrainingConfig(length=16, batch=4),
)
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return str(file)


def test_a_right_recipe_is_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "llama3_debug"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("llama3_debug on dp_shard 2 x tp 2 = 4 ranks: right")
    assert "over tp" in shown.out
    assert shown.err == ""


def test_a_wrong_recipe_is_exit_code_1(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", mine]) == 1
    shown = capsys.readouterr()
    assert f"{mine} on tp 2 = 2 ranks: wrong, 1 problem\n" in shown.out
    assert "1. blocks.0-2.attention.wo.sharding_config.state_shardings['weight']: " in shown.out
    assert """fix: state_shardings['weight'] = {"dp": R, "cp": R, "tp": S(1)}""" in shown.out
    assert shown.err == ""


def test_flags_are_those_of_train(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", mine, "--parallel.tp", "1", "--parallel.cp", "2"]) == 0
    assert "on cp 2 = 2 ranks: right" in capsys.readouterr().out
    assert main(["check", "llama3_debug", "--parallel.tp", "3"]) == 1
    assert "training.length: 128 tokens do not divide over tp 3" in capsys.readouterr().out


@pytest.mark.parametrize("place", [0, 1, 3])
def test_json_prints_one_document_wherever_the_flag_stands(
    place: int, mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [mine, "--training.batch", "8"]
    arguments.insert(place, "--json")
    assert main(["check", *arguments]) == 1
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["verdict"] == "wrong"
    assert document["recipe"] == mine
    assert [problem["where"] for problem in document["problems"]] == [
        "blocks.0-2.attention.wo.sharding_config.state_shardings['weight']"
    ]
    assert shown.err == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "error: meshwright check: no recipe"),
        (["--parallel.tp", "2"], "error: meshwright check: '--parallel.tp' where the recipe belongs"),
        (["llama_debug"], "error: recipe: no recipe 'llama_debug', did you mean 'llama3_debug'?"),
        (["llama3_debug", "--jsn"], "error: --jsn: no such flag"),
        (["llama3_debug", "--parallel.tp", "two"], "error: --parallel.tp: 'two' is not a whole number"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(said)


def test_with_json_a_wrong_command_line_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json"]) == 2
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["verdict"], document["problems"][0]["what"]) == ("wrong", "no recipe")
    assert shown.err.startswith("error: meshwright check: no recipe")


def test_its_help_lists_the_recipes_and_loads_no_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "usage: meshwright check RECIPE [--json]" in shown
    assert all(name in shown for name in recipes.names())
    program = "import sys; from meshwright.cli import main; main(['check', '--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


def test_the_document_is_all_that_a_process_prints() -> None:
    command = [sys.executable, "-m", "meshwright", "check", "llama3_debug", "--json", "--parallel.dp-shard", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["mesh"] == "tp 2"


class TestTraining:
    """What `check` refuses is not trained, and said before any process starts."""

    @pytest.fixture
    def started(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        calls: list[str] = []
        monkeypatch.setattr(launch, "train", lambda recipe, *_: calls.append(recipe) or 0)
        return calls

    def test_wrong_types_are_refused(self, mine: str, started: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", mine]) == 2
        assert "error: blocks.0-2.attention.wo.sharding_config.state_shardings['weight']" in capsys.readouterr().err
        assert started == []

    def test_on_one_rank_there_is_nothing_to_be_wrong(self, mine: str, started: list[str]) -> None:
        assert main(["train", mine, "--parallel.tp", "1"]) == 0
        assert started == [mine]

    @pytest.mark.parametrize("environment", [{"RANK": "1"}, {VARIABLE: "runs/x"}])
    def test_ranks_that_were_started_do_not_check_again(
        self, environment: dict[str, str], mine: str, started: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert main(["train", mine]) == 0
        assert started == [mine]

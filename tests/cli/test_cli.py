"""`meshwright`: what it says and its exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright import __version__, recipes
from meshwright.cli import COMMANDS, main
from meshwright.errors import DataError, Problem, RunError
from meshwright.train.config import TrainConfig
from meshwright.train.launch import parent as launch
from meshwright.train.show.run_folder import VARIABLE, RunFolder


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, TrainConfig, list[str]]]:
    """What would have been trained."""
    calls: list[tuple[str, TrainConfig, list[str]]] = []

    def train(recipe: str, config: TrainConfig, arguments: list[str]) -> int:
        calls.append((recipe, config, arguments))
        return 0

    monkeypatch.setattr(launch, "train", train)
    return calls


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert all(
        re.search(rf"^  {word} +{re.escape(command.summary)}$", shown, re.M) for word, command in COMMANDS.items()
    )


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"meshwright {__version__}\n"


def test_help_of_train_lists_the_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and recipes.summary(name) in shown for name in recipes.names())


def test_help_of_a_recipe_shows_its_flags_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "llama3_debug", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "usage: meshwright train llama3_debug" in shown
    assert "--model.layers INT" in shown
    assert "--parallel.dp-shard INT" in shown
    assert "layouts" not in [line.strip(" │").split(" ")[0].strip("-") for line in shown.splitlines()]


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["train"], ["train", "no_such"]])
def test_what_needs_no_torch_does_not_load_it(arguments: list[str]) -> None:
    program = (
        "import sys; from meshwright.cli import main; main(sys.argv[1:]);"
        "sys.exit('torch' in sys.modules and sys.argv[-1] != 'no_such')"
    )
    assert subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True).returncode == 0


def test_flags_reach_the_config(trained: list[tuple[str, TrainConfig, list[str]]]) -> None:
    arguments = ["train", "llama3_debug", "--training.steps", "3", "--model.layers", "1", "--parallel.dp_shard", "1"]
    assert main(arguments) == 0
    ((recipe, config, repeated),) = trained
    assert (recipe, repeated) == ("llama3_debug", arguments)
    assert (config.training.steps, vars(config.model)["layers"], config.parallel.dp_shard) == (3, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "error: trian: no such command, did you mean 'train'?"),
        (["train"], "error: meshwright train: no recipe"),
        (["train", "--parallel.tp", "2"], "error: meshwright train: '--parallel.tp' where the recipe belongs"),
        (["train", "llama_debug"], "error: recipe: no recipe 'llama_debug', did you mean 'llama3_debug'?"),
        (
            ["train", "llama3_debug", "--parallel.dp-shrad", "2"],
            "error: --parallel.dp-shrad: no such flag, did you mean '--parallel.dp-shard'?",
        ),
        (["train", "llama3_debug", "--training.steps", "many"], "error: --training.steps: 'many'"),
    ],
)
def test_a_wrong_command_line_is_one_message_and_exit_code_2(
    arguments: list[str], said: str, trained: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(said)
    assert shown.err.count("error:") == 1
    assert "  fix: " in shown.err
    assert "Traceback" not in shown.err
    assert trained == []


@pytest.mark.parametrize(("error", "code"), [(DataError, 2), (RunError, 1)])
def test_every_error_of_meshwright_is_one_message(
    error: type[DataError | RunError], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise error(Problem(where="here", what="it is wrong", why="of a reason", fix="do [this]"))

    monkeypatch.setattr(launch, "train", fail)
    assert main(["train", "llama3_debug"]) == code
    assert capsys.readouterr() == ("", "error: here: it is wrong\n  why: of a reason\n  fix: do [this]\n")


def test_ctrl_c_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "train", stop)
    assert main(["train", "llama3_debug"]) == 130
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.parametrize(
    ("environment", "is_said"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0"}, True),
        ({"LOCAL_RANK": "1"}, False),  # on the terminal that rank 0 of the machine also has
        ({"LOCAL_RANK": "1", VARIABLE: "runs/x"}, True),  # to its own log
    ],
)
def test_ranks_that_share_a_terminal_say_it_once(
    environment: dict[str, str], is_said: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "no_such"]) == 2
    assert bool(capsys.readouterr().err) is is_said


def test_stopping_a_run_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    folder = RunFolder.create(str(tmp_path), "llama3_debug")
    monkeypatch.setattr(launch, "_prepare", lambda *_: (folder, {}))
    monkeypatch.setattr(launch, "launch", stop)
    assert main(["train", "llama3_debug"]) == 130
    assert capsys.readouterr().err == f"stopped; what was written is in {folder.path}\n"


def test_more_processes_than_the_degrees_say_is_refused_before_any_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(launch, "launch", never)
    assert main(["train", "llama3_debug", "--launch.processes", "3"]) == 2
    assert "launch.processes" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--launch.processes", "--launch.threads"])
def test_less_than_one_process_or_thread_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "llama3_debug", flag, "0"]) == 2
    assert f"fix: {flag} from 1 to 4096" in capsys.readouterr().err

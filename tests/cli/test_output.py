"""What a reader of the output gets: a document whatever is wrong, and an exit code that is not that of a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from meshwright import terminal
from meshwright.cli import main


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--help"]], ids=str)
def test_a_reader_that_goes_is_no_failure(arguments: list[str]) -> None:
    """The pipe is closed before anything is written: 141, as of a program that SIGPIPE ends, and not a word."""
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "meshwright",
            "check",
            *(() if "--help" in arguments else ("llama3_debug",)),
            *arguments,
        ],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert ended.returncode == terminal.BROKEN_PIPE
    assert ended.stderr == b""


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["llama3_debug", "--bogus", "3"], "no such flag"),
        (["llama3_debug", "--training.steps", "many"], ""),
        (["no_such_recipe"], "no recipe 'no_such_recipe'"),
        ([], "no recipe"),
    ],
)
def test_what_cannot_be_read_is_a_document_too(
    arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments, "--json"]) == 2
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["verdict"] == "wrong"
    assert document["recipe"] == "".join(arguments[:1])
    (problem,) = document["problems"]
    assert what in problem["what"]
    assert problem["fix"]
    assert shown.err.startswith("error: ")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--optimizer.rate", "nan"),
        ("--training.seed", "-1"),
        ("--data.vocab", "-3"),
        ("--launch.processes", "3"),
        ("--launch.threads", "0"),
        ("--training.length", "999999999999"),
    ],
)
def test_check_says_a_wrong_number(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "llama3_debug", "--json", f"{flag}={value}"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem["where"] for problem in problems] == [flag.removeprefix("--")]
    assert all(problem["fix"] for problem in problems)

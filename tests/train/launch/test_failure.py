"""Which of several failures was first, and what is said of it."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from meshwright.errors import ConfigError, Problem
from meshwright.train.launch.failure import TAIL, Failure, Report, in_order, problem_of
from meshwright.train.show.run_folder import RunFolder


class DistError(RuntimeError):
    """Named like the root of what torch's collectives raise."""


class DistBackendError(DistError): ...


def caught(error: Exception) -> Report:
    try:
        raise error
    except Exception as raised:
        return Report.of(raised)


def died(rank: int, number: int) -> Failure:
    return Failure(rank=rank, code=-number, report=None)


def said(rank: int, text: str, seconds: float, *, echo: bool = False) -> Failure:
    return Failure(rank=rank, code=1, report=Report(text=text, seconds=seconds, echo=echo))


def test_causes_come_before_what_follows_from_them() -> None:
    right = (
        died(3, signal.SIGKILL),
        Failure(rank=5, code=7, report=None),
        said(4, "early", 10.0),
        said(1, "late", 11.0),
        died(2, signal.SIGABRT),
        said(0, "the peer is gone", 9.0, echo=True),
    )
    for seed in range(20):
        assert in_order(random.Random(seed).sample(right, len(right))) == right


@pytest.mark.parametrize(
    ("error", "is_echo"),
    [
        (RuntimeError("gloo: Connection closed by peer [127.0.0.1]:1"), True),
        (DistBackendError("NCCL error"), True),
        (RuntimeError("shapes differ"), False),
        (ConfigError(Problem(where="x", what="Connection closed by peer")), False),
    ],
)
def test_the_loss_of_a_peer_is_an_echo(error: Exception, is_echo: bool) -> None:
    assert caught(error).echo is is_echo


def test_an_error_of_meshwright_is_its_text() -> None:
    error = ConfigError(Problem(where="x", what="wrong", fix="right"))
    assert caught(error).text == str(error)


def test_what_several_ranks_say_names_them(tmp_path: Path) -> None:
    failures = in_order([said(2, "a", 1.0), said(0, "b", 3.0), said(1, "a", 2.0)])
    assert str(problem_of(failures, 4, RunFolder(tmp_path))) == f"ranks 1, 2: a\n  logs: {tmp_path}/logs"


def test_a_single_rank_is_not_every_rank(tmp_path: Path) -> None:
    assert problem_of([said(0, "a", 1.0)], 1, RunFolder(tmp_path)).where == "rank 0"


def test_the_end_of_the_log_speaks_for_a_rank_that_cannot(tmp_path: Path) -> None:
    folder = RunFolder.create(str(tmp_path), "run")
    folder.log(1).write_text("".join(f"line {line}\n\n" for line in range(100)))
    lines = problem_of([died(1, signal.SIGSEGV)], 2, folder).what.splitlines()
    assert lines[0] == "died of SIGSEGV: native code touched memory that is not its own"
    assert lines[1:-1] == [f"  | line {line}" for line in range(100 - TAIL, 100)]


def test_a_rank_that_left_no_log(tmp_path: Path) -> None:
    what = problem_of([died(0, signal.SIGBUS)], 2, RunFolder(tmp_path)).what
    assert what == f"died of SIGBUS\n  logs: {tmp_path}/logs"

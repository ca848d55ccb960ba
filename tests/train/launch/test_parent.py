"""Ranks are started together and end together; the first failure is told once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from meshwright.errors import RunError
from meshwright.train.launch.parent import launch
from meshwright.train.show.run_folder import RunFolder
from tests.marks import slow

from . import parent_program

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
LONG = 60.0  # seconds; what is waited for comes within a few


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(str(tmp_path), "test")


def run(behaviour: str, folder: RunFolder) -> None:
    launch([sys.executable, str(parent_program.PROGRAM), behaviour, str(folder.path)], 2, folder, ONE_THREAD)


def failure(behaviour: str, folder: RunFolder) -> str:
    with pytest.raises(RunError) as failed:
        run(behaviour, folder)
    assert all(is_gone(process) for process in started(folder))
    return str(failed.value)


def started(folder: RunFolder) -> list[int]:
    """The processes of the ranks, once they are at work."""
    return [int(file.read_text()) for file in folder.path.glob("here*") if file.read_text()]


def hears_ctrl_c() -> None:
    """A shell starts what runs in its background deaf to it, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_gone(process: int) -> bool:
    """Whether it has ended, be it that nobody has asked for its exit code yet."""
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return True
    return state == "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    patience = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < patience, "waited in vain"
        time.sleep(0.05)


def test_ranks_work_together_and_the_first_has_the_terminal(
    folder: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    run("add_ranks", folder)
    assert capfd.readouterr() == ("rank 0: sum 3.0, 1 threads\n", "rank 0: a warning\n")
    assert folder.log(1).read_text() == "rank 1: sum 3.0, 1 threads\nrank 1: a warning\n"
    assert not list(folder.logs.glob("*.error.json"))


def test_an_interpreter_that_cannot_end_does_not_spoil_a_run_that_is_done(
    folder: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    run("abort_at_exit", folder)
    assert capfd.readouterr().out == "rank 0: done\n"
    assert folder.log(1).read_text() == "rank 1: done\n"


def test_a_rank_that_refuses_ends_one_that_sleeps_through_sigterm(
    folder: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    told = failure("refuse_in_rank_1", folder)
    assert told == f"rank 1: step 3: the loss is nan\n  fix: a lower rate\n  logs: {folder.logs}"
    assert capfd.readouterr() == ("", "")
    assert "RunError" in folder.log(1).read_text()


def test_what_every_rank_says_is_told_once(folder: RunFolder) -> None:
    told = failure("refuse", folder)
    assert told.startswith("every rank: step 3: the loss is nan\n")
    assert told.count("the loss is nan") == 1


def test_an_unforeseen_exception_is_told_with_its_place(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    told = failure("break_down_in_rank_0", folder)
    assert told.startswith("rank 0: ValueError: no such number\n")
    assert "in break_down\n" in told
    assert "multiprocessing/errors" not in told
    assert capfd.readouterr() == ("", "")
    assert "Traceback (most recent call last)" in folder.log(0).read_text()


def test_a_rank_that_is_killed_is_the_cause_of_what_its_peer_meets(folder: RunFolder) -> None:
    told = failure("lose_a_peer", folder)
    assert told.startswith("rank 1: died of SIGKILL: killed from outside")
    assert "\n  | rank 1: last words\n" in told
    assert "Connection" not in told


def test_torchrun_is_told_the_cause_too(folder: RunFolder) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    behaviour = [str(parent_program.PROGRAM), "refuse", str(folder.path)]
    ended = subprocess.run([*torchrun, *behaviour], capture_output=True, text=True, timeout=LONG)
    assert ended.returncode == 1
    assert re.search(r"rank [01]: step 3: the loss is nan\n  fix: a lower rate\n", ended.stderr)  # whoever was first
    assert "Root Cause (first observed failure)" in ended.stderr
    assert "meshwright.errors.RunError" in ended.stderr.partition("Root Cause")[2]


def test_a_rank_that_quits_amid_the_run_has_failed(folder: RunFolder) -> None:
    assert failure("quit_in_rank_1", folder).startswith("rank 1: ended with exit code 7 amid the run")


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (signal.SIGINT, -signal.SIGINT),  # a KeyboardInterrupt that nobody caught
        slow(signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_no_rank_outlives_its_parent(ending: signal.Signals, code: int, folder: RunFolder) -> None:
    command = [sys.executable, parent_program.__file__, str(folder.path)]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=hears_ctrl_c)
    wait_until(lambda: len(started(folder)) == 2)
    ranks = started(folder)
    parent.send_signal(ending)
    assert parent.wait(LONG) == code
    wait_until(lambda: all(map(is_gone, ranks)))


@pytest.mark.slow
def test_a_run_under_nohup_outlives_its_terminal(folder: RunFolder) -> None:
    command = ["nohup", sys.executable, parent_program.__file__, str(folder.path)]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(started(folder)) == 2)
    parent.send_signal(signal.SIGHUP)
    with suppress(subprocess.TimeoutExpired):
        parent.wait(3.0)  # time to end, if it would
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(LONG) == 128 + signal.SIGTERM  # not of SIGHUP

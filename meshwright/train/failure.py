"""How ranks fail, which of them failed first, and what a person is told of it."""

from __future__ import annotations

import json
import signal
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import MeshwrightError, Problem
from meshwright.train.run_folder import RunFolder

FRAMES = 3  # the last ones of an exception that nobody raised on purpose
TAIL = 15  # the last lines of the log of a rank that could not say what it died of

ECHOES = frozenset({signal.SIGABRT, signal.SIGTERM})
"""Signals that can be a rank's answer to another's failure; any other comes first."""

WHY = {
    signal.SIGKILL: "a process is killed from outside, most often by the system when memory is used up",
    signal.SIGSEGV: "native code touched memory that is not its own; the log has the Python stack",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """Why a rank failed, as it said itself.

    text:    for a person: the message of a MeshwrightError, else the exception and its last frames
    seconds: since the epoch, when it was caught
    """

    text: str
    seconds: float

    @classmethod
    def of(cls, error: BaseException) -> Report:
        """The report of an exception that was just caught."""
        if isinstance(error, MeshwrightError):
            return cls(text=str(error), seconds=time.time())
        frames = traceback.format_list(traceback.extract_tb(error.__traceback__)[-FRAMES:])
        text = "".join([*traceback.format_exception_only(error), *frames])
        return cls(text=text.rstrip(), seconds=time.time())

    @classmethod
    def read(cls, file: Path) -> Report | None:
        """What the rank wrote to `file`; None if nothing."""
        try:
            written = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return cls(**written["report"])


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How one rank ended before its work was done.

    code:   exit code, negative for a signal; None if it had reported its failure and was still running
    report: what it said itself, if it could
    """

    rank: int
    code: int | None
    report: Report | None


def in_order(failures: Sequence[Failure]) -> tuple[Failure, ...]:
    """The first cause, then its echoes.

    A sudden death is never an answer to another rank's failure. An exception may be, and then comes after its cause.
    """
    return tuple(sorted(failures, key=_precedence))


def problem_of(failures: Sequence[Failure], processes: int, folder: RunFolder) -> Problem:
    """What to say of ranks that failed, the first cause in front: who it was, why, and where the logs are."""
    first = failures[0]
    logs = f"\n  logs: {folder.logs}"
    if first.report is not None:
        text = first.report.text
        alike = sorted(failure.rank for failure in failures if failure.report and failure.report.text == text)
        return Problem(where=_name(alike, processes), what=f"{text}{logs}")
    lines = _tail(folder.log(first.rank))
    quoted = "".join(f"\n  | {line}" for line in lines)
    if first.code is not None and first.code < 0:
        number = signal.Signals(-first.code)
        return Problem(where=f"rank {first.rank}", what=f"died of {number.name}{quoted}{logs}", why=WHY.get(number, ""))
    return Problem(where=f"rank {first.rank}", what=f"ended with exit code {first.code} amid the run{quoted}{logs}")


def _precedence(failure: Failure) -> tuple[int, float]:
    if failure.report is not None:
        return 1, failure.report.seconds
    if failure.code is not None and failure.code < 0 and -failure.code not in ECHOES:
        return 0, failure.rank
    return 2, failure.rank


def _name(ranks: Sequence[int], processes: int) -> str:
    if len(ranks) == processes > 1:
        return "every rank"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _tail(log: Path) -> list[str]:
    if not log.exists():
        return []
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]

"""How ranks fail, which of them failed first, and what a person is told of it."""

from __future__ import annotations

import json
import signal
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import ConfigError, MeshwrightError, Problem
from meshwright.train.show.run_folder import RunFolder

FRAMES = 3  # the last ones of an exception that nobody raised on purpose
INDENT = "\n  "
TAIL = 15  # the last lines of the log of a rank that could not say what it died of

ECHOING_SIGNALS = frozenset({signal.SIGABRT, signal.SIGTERM})
"""What a rank can die of because another has failed."""
ENDED = 128 + signal.SIGTERM
"""The exit code of a rank that ends itself because the run is over."""
LOST_PEER = ("Connection closed by peer", "Connection reset by peer")
"""What gloo says in a rank because another has failed."""

MEANING = {
    signal.SIGKILL: ": killed from outside, most often by the system when memory is used up",
    signal.SIGSEGV: ": native code touched memory that is not its own",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """Why a rank failed, as it said itself.

    text:    for a person: the message of a MeshwrightError, else the exception and its last frames
    seconds: since the epoch, when it was caught
    echo:    a collective found that another rank is gone
    refused: what was asked for cannot be: nothing broke down
    """

    text: str
    seconds: float
    echo: bool = False
    refused: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Report:
        """The report of an exception that was just caught; the frame that caught it is left out."""
        if isinstance(error, MeshwrightError):
            return cls(text=str(error), seconds=time.time(), refused=isinstance(error, ConfigError))
        frames = traceback.format_list(traceback.extract_tb(error.__traceback__)[1:][-FRAMES:])
        text = "".join([*traceback.format_exception_only(error), *frames])
        return cls(text=text.rstrip(), seconds=time.time(), echo=_is_echo(error))

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
    """The first cause, then what may have followed from it.

    Sudden deaths come first, for no rank dies suddenly because another has failed; then exceptions, the earliest in
    front; last what a rank meets when another is gone.
    """
    return tuple(sorted(failures, key=_precedence))


def problem_of(failures: Sequence[Failure], processes: int, folder: RunFolder) -> Problem:
    """What to say of ranks that failed, the first cause in front: who it was, why, and where the logs are, if they are
    kept."""
    first = failures[0]
    if first.report is not None:
        what = first.report.text
        ranks = sorted(failure.rank for failure in failures if failure.report and failure.report.text == what)
    else:
        what = f"{_death(first.code)}{''.join(f'{INDENT}| {line}' for line in _tail(folder.log(first.rank)))}"
        ranks = [first.rank]
    logs = f"{INDENT}logs: {folder.logs}" if folder.path.exists() else ""
    return Problem(where=_name(ranks, processes), what=f"{what}{logs}")


def _precedence(failure: Failure) -> tuple[int, float]:
    report, code = failure.report, failure.code or 0
    if report is not None:
        return (3 if report.echo else 1), report.seconds
    return (2 if -code in ECHOING_SIGNALS or code == ENDED else 0), failure.rank


def _is_echo(error: BaseException) -> bool:
    lost = any(kind.__name__ == "DistError" for kind in type(error).__mro__)  # by name: torch stays unloaded
    return lost or any(words in str(error) for words in LOST_PEER)


def _death(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit code {code} amid the run"
    number = signal.Signals(-code)
    return f"died of {number.name}{MEANING.get(number, '')}"


def _name(ranks: Sequence[int], processes: int) -> str:
    if len(ranks) == processes > 1:
        return "every rank"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _tail(log: Path) -> list[str]:
    if not log.exists():
        return []
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line.strip()][-TAIL:]

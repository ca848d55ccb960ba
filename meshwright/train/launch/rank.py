"""What runs in one process of a run: its place, its log, and how its failure is told to whoever started it.

The environment is torchrun's: RANK, LOCAL_RANK, WORLD_SIZE, and TORCHELASTIC_ERROR_FILE for the first cause.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, NoReturn

from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, record

from meshwright.errors import MeshwrightError
from meshwright.train.launch.failure import ENDED, Report
from meshwright.train.show.run_folder import RunFolder

WATCH = 0.5  # seconds between two looks at whether the run is over
GRACE = 3.0  # seconds in which a rank may end by itself


def run_rank(work: Callable[[], None]) -> NoReturn:
    """Do the `work` of this rank and end the process: with exit code 0, or 1 if it failed.

    A failure is reported to whoever started the rank. `launch` shows it; under torchrun it is printed here.
    """
    rank, folder = int(os.environ["RANK"]), RunFolder.inherited()
    if folder is not None:
        _end_with(folder)
        if rank != 0:
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # one log, in the order in which it was printed
    code = 0
    try:
        record(work, _Handler(rank, folder))()
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except Exception as error:
        code = 1
        if folder is None:
            text = str(error) if isinstance(error, MeshwrightError) else traceback.format_exc()
            print(f"rank {rank}: {text.rstrip()}", file=sys.stderr, flush=True)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End at once, with all output written, but without the interpreter's own end.

    A thread of gloo may still let go of a tensor; if the interpreter is going meanwhile, the process aborts and a run
    that is done would count as failed.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


class _Handler(ErrorHandler):
    """Writes what torchrun reads of a failed rank, and a Report beside it."""

    def __init__(self, rank: int, folder: RunFolder | None) -> None:
        self._log = None if folder is None else folder.log(rank)
        self._crashes: IO[str] | None = None

    def initialize(self) -> None:
        if self._log is None:
            super().initialize()
        else:
            self._crashes = open(self._log, "a", encoding="utf-8")  # noqa: SIM115 (as long as the process)
            faulthandler.enable(self._crashes)

    def record_exception(self, e: BaseException) -> None:
        if self._crashes is not None:
            traceback.print_exception(e, file=self._crashes)
            self._crashes.flush()
        file = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if file:
            _write(Path(file), _data(e))


def _data(error: BaseException) -> dict[str, Any]:
    report = Report.of(error)
    stack = "".join(traceback.format_exception(error))
    details = {"py_callstack": stack, "timestamp": str(int(report.seconds))}
    return {
        "message": {"message": f"{type(error).__name__}: {error}", "extraInfo": details},
        "report": asdict(report),
    }


def _write(file: Path, data: dict[str, Any]) -> None:
    """All of it or nothing: the process may be ended meanwhile."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(data), encoding="utf-8")
    part.replace(file)


def _end_with(folder: RunFolder) -> None:
    """End once the launcher is gone, however it went, or a while after any rank has reported a failure.

    The launcher asks first; this is for a rank that does not hear it.
    """
    launcher = os.getppid()

    def is_over() -> bool:
        return os.getppid() != launcher or folder.has_failed

    def watch() -> None:
        while not is_over():
            time.sleep(WATCH)
        if os.getppid() == launcher:
            time.sleep(GRACE)
        os._exit(ENDED)

    threading.Thread(target=watch, name="end with the run", daemon=True).start()

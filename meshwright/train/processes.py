"""One process a rank on this machine, all of them ended with the first that fails.

The ranks find torchrun's environment. What this adds to torch's own agent: one log a rank, an end within seconds, and
the first cause alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from torch.distributed import TCPStore

from meshwright.train.failure import Failure, Report, in_order
from meshwright.train.run_folder import VARIABLE, RunFolder

HOST = "127.0.0.1"
POLL = 0.1  # seconds between two looks at the ranks
REACTION = 0.5  # seconds in which others may still report what the first failure did to them
GRACE = 3.0  # seconds between asking a process to end and killing it


def supervise(
    command: Sequence[str], processes: int, folder: RunFolder, environment: Mapping[str, str]
) -> tuple[Failure, ...]:
    """Run `command` in `processes` ranks until all have ended well, or one has failed and the rest are ended.

    environment: added to this process's own and torchrun's

    Rank 0 has the terminal, the others write to their logs. The failures come with the first cause in front; none is
    returned if all went well. However this function is left, no rank is left running.
    """
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=10))
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(processes):
            ranks.append(
                _start(command, rank, folder, {**_torchrun(rank, processes, store.port, folder), **environment})
            )
        while not _failed(ranks, folder):
            if all(process.returncode == 0 for process in ranks):
                return ()
            time.sleep(POLL)
        patience = time.monotonic() + REACTION
        while time.monotonic() < patience and any(process.poll() is None for process in ranks):
            time.sleep(POLL)
        codes = [process.poll() for process in ranks]
    finally:
        _end(ranks)
    reports = [Report.read(folder.error(rank)) for rank in range(processes)]
    failures = [
        Failure(rank=rank, code=code, report=report)
        for rank, (code, report) in enumerate(zip(codes, reports, strict=True))
        if report is not None or code not in (None, 0)
    ]
    return in_order(failures)


def _torchrun(rank: int, processes: int, port: int, folder: RunFolder) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is this process's, so it outlives any rank
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_ERROR_FILE": str(folder.error(rank)),
        VARIABLE: str(folder.path),
        "PYTHONUNBUFFERED": "1",  # a rank that is killed has its last words in its log
    }


def _start(
    command: Sequence[str], rank: int, folder: RunFolder, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """One rank in a session of its own, which Ctrl-C does not reach; it ends with the pipe at its input."""
    variables = {**os.environ, **environment}
    if rank == 0:
        return subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, start_new_session=True)
    with open(folder.log(rank), "ab") as log:
        return subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )


def _failed(ranks: Sequence[subprocess.Popen[bytes]], folder: RunFolder) -> bool:
    """Whether a rank has died or, though it still runs, has reported a failure."""
    codes = [process.poll() for process in ranks]
    return any(codes) or any(folder.error(rank).exists() for rank in range(len(ranks)))


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs: with SIGTERM, then, at the latest after GRACE, with SIGKILL."""
    try:
        _signal(ranks, signal.SIGTERM)
        patience = time.monotonic() + GRACE
        for process in ranks:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, patience - time.monotonic()))
    finally:
        _signal(ranks, signal.SIGKILL)
        for process in ranks:
            with suppress(subprocess.TimeoutExpired):  # one that hangs in a driver cannot be waited for
                process.wait(GRACE)


def _signal(ranks: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in ranks:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

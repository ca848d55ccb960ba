"""One process a rank on this machine, under torchrun's agent; all of them end with the first that fails.

What stands around the agent: one log a rank, the terminal for rank 0, and the first cause alone.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping, Sequence
from uuid import uuid4

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from meshwright.train.launch.failure import Failure, Report, in_order
from meshwright.train.show.run_folder import VARIABLE, RunFolder

HOST = "127.0.0.1"
POLL = 0.1  # seconds between two looks at the ranks
GRACE = 3  # seconds between asking a process to end and killing it
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a run, unless they are ignored already, as SIGHUP is under nohup."""


def supervise(
    command: Sequence[str], processes: int, folder: RunFolder, environment: Mapping[str, str]
) -> tuple[Failure, ...]:
    """Run `command` in `processes` ranks until all have ended well, or one has failed and the rest are ended.

    environment: added to this process's own and torchrun's

    Rank 0 has the terminal, the others write to their logs. The failures come with the first cause in front; none is
    returned if all went well. However this function is left, no rank is left running. Errors: SystemExit with 128 + its
    number on a signal, KeyboardInterrupt on Ctrl-C.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)  # the agent's loggers have levels of their own; what fails is told once, by us
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{HOST}:0",
        local_addr=HOST,
        max_restarts=0,
        monitor_interval=POLL,
        shutdown_timeout=GRACE,
        signals_to_handle=",".join(number.name for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN),
        logs_specs=_Surroundings(folder, environment),
    )
    try:
        elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        return _failures({rank: failure.exitcode for rank, failure in error.failures.items()}, processes, folder)
    except SignalException as end:
        if end.sigval.name == "SIGINT":
            raise KeyboardInterrupt from None
        raise SystemExit(128 + end.sigval) from None
    finally:
        logging.disable(disabled)
    return ()


class _Surroundings(LogsSpecs):
    """Each rank's environment and outputs. Rank 0 keeps the terminal."""

    def __init__(self, folder: RunFolder, environment: Mapping[str, str]) -> None:
        super().__init__(str(folder.logs))
        self._folder = folder
        # unbuffered: a rank that is killed has its last words in its log
        self._environment = {VARIABLE: str(folder.path), "PYTHONUNBUFFERED": "1", **environment}

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        for rank, variables in envs.items():
            variables.update(self._environment, TORCHELASTIC_ERROR_FILE=str(self._folder.error(rank)))
        others = [rank for rank in envs if rank != 0]
        return LogsDest(
            stdouts={0: "", **dict.fromkeys(others, os.devnull)},  # the rank joins it to its log, `rank.py`
            stderrs={0: "", **{rank: str(self._folder.log(rank)) for rank in others}},
            error_files={rank: str(self._folder.error(rank)) for rank in envs},
        )

    @property
    def root_log_dir(self) -> str:
        return str(self._folder.logs)


def _failures(codes: Mapping[int, int], processes: int, folder: RunFolder) -> tuple[Failure, ...]:
    """The ranks that the agent saw fail, and those that had reported a failure when it ended them."""
    reports = {rank: Report.read(folder.error(rank)) for rank in range(processes)}
    failed = [rank for rank in range(processes) if rank in codes or reports[rank] is not None]
    return in_order([Failure(rank=rank, code=codes.get(rank), report=reports[rank]) for rank in failed])

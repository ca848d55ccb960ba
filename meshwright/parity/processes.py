"""Real ranks: processes over gloo that are started once and run one program after the other."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Final, Self

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from meshwright.errors import MeshwrightError, Problem, RunError
from meshwright.train.launch.failure import Report

PATIENCE: Final = timedelta(seconds=60)
"""How long a rank waits for the others in a collective."""
_SECONDS: Final = 5.0
"""How long the others are waited for when a rank has failed: where all fail alike they say so at once."""


class RankFailed(RunError):
    """A program raised an error. cause: where meshwright raised it on purpose; alike: every rank raised one."""

    def __init__(self, problem: Problem, cause: MeshwrightError | None = None, *, alike: bool = False) -> None:
        super().__init__(problem)
        self.cause, self.alike = cause, alike


class RankDied(RunError):
    """A process ended that was to go on."""


class Ranks:
    """`world` processes that share a process group. A context; `end` ends them, at whatever they are."""

    def __init__(self, world: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(world):
            mine, theirs = context.Pipe()
            arguments = (rank, world, f"{self.folder.name}/store", theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    @property
    def alive(self) -> bool:
        """Whether they can run another program."""
        return bool(self.processes)

    def run(self, program: Callable[..., Any], *args: Any) -> list[Any]:
        """`program(rank, *args)` in every process; what each returns, in rank order. It is a function of a module.

        Errors: `RankFailed` where it raises; the processes go on where it raised on all ranks, else they are ended.
        `RankDied` where a process ends; so are the others.
        """
        try:
            for pipe in self.pipes:
                pipe.send((program, args))
            return self._results()
        except (BrokenPipeError, ConnectionResetError):
            self._died()
        except BaseException as error:
            if not (isinstance(error, RankFailed) and error.alike):
                self.end()
            raise
        return []

    def _results(self) -> list[Any]:
        results: dict[int, Any] = {}
        failures: dict[int, _Failure] = {}
        while len(results) + len(failures) < len(self.pipes):
            left = [pipe for rank, pipe in enumerate(self.pipes) if rank not in results and rank not in failures]
            ready = wait(left, _SECONDS if failures else None)
            if not ready:
                break
            for rank in [number for number, pipe in enumerate(self.pipes) if pipe in ready]:
                try:
                    failed, result = self.pipes[rank].recv()
                except (EOFError, ConnectionResetError):
                    self._died(rank)
                if failed:
                    failures[rank] = failed
                else:
                    results[rank] = result
        if failures:
            raise _failed(failures, everywhere=len(failures) == len(self.pipes))
        return [results[rank] for rank in range(len(self.pipes))]

    def _died(self, rank: int | None = None) -> None:
        for process in self.processes if rank is None else [self.processes[rank]]:
            process.join(_SECONDS)
        codes = [process.exitcode for process in self.processes]
        if rank is None:
            rank = next((number for number, code in enumerate(codes) if code is not None), 0)
        code = codes[rank]
        self.end()
        how = f"was ended by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        raise RankDied(
            Problem(
                where=f"rank {rank}",
                what=f"its process {how}",
                why="a step needs every rank; the other processes were ended",
                fix="fewer --ranks, where memory was used up",
            )
        )

    def end(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for pipe in self.pipes:
            pipe.close()
        self.processes, self.pipes = [], []
        self.folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class Started:
    """The processes of one number of ranks, until another is asked for."""

    def __init__(self) -> None:
        self.ranks: Ranks | None = None

    def of(self, world: int) -> Ranks:
        """`world` processes: those there are, or new ones where these are others or have ended."""
        if self.ranks is None or len(self.ranks.pipes) != world:
            self.close()
            self.ranks = Ranks(world)
        return self.ranks

    def close(self) -> None:
        """End them."""
        if self.ranks is not None:
            self.ranks.end()


_Failure = tuple[MeshwrightError | None, str]
"""What meshwright raised on purpose, if it did; what is told of it."""


def _failed(failures: dict[int, _Failure], *, everywhere: bool) -> RankFailed:
    """One rank's error stands for all: what others say is most often that a rank has left them."""
    rank, (cause, text) = min(failures.items(), key=lambda item: (item[1][0] is None, item[0]))
    alike = everywhere and all(found is not None for found, _ in failures.values())
    return RankFailed(Problem(where=f"rank {rank}", what=text), cause, alike=alike)


def _failure(error: BaseException) -> _Failure:
    """An error that torch has wrapped in its own is still ours."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, MeshwrightError):
            return link, str(link)
        link = link.__cause__
    return None, Report.of(error).text


def _serve(rank: int, world: int, store: str, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal; who started this one ends it
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=PATIENCE)
    while True:
        try:
            program, args = pipe.recv()
        except EOFError:  # who started it has ended
            return
        try:
            pipe.send((None, program(rank, *args)))
        except Exception as error:
            pipe.send((_failure(error), None))

"""Real ranks for tests: processes over gloo that are started once and run one program after the other."""

from __future__ import annotations

import atexit
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

PATIENCE = timedelta(seconds=60)
"""How long a rank waits for the others in a collective."""


class Ranks:
    """`world` processes that share a process group."""

    def __init__(self, world: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(world):
            mine, theirs = context.Pipe()
            arguments = (rank, world, f"{self.folder.name}/store", theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def run(self, program: Callable[..., Any], *args: Any) -> list[Any]:
        """`program(rank, *args)` in every process; what each returns, in rank order.

        `program` is a function of a module. The first error of a rank is raised here, and the processes are ended.
        """
        for pipe in self.pipes:
            pipe.send((program, args))
        results: dict[int, Any] = {}
        while len(results) < len(self.pipes):
            left = [pipe for rank, pipe in enumerate(self.pipes) if rank not in results]
            for pipe in wait(left):
                rank = self.pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    error, results[rank] = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    error = "it died"
                if error:
                    self.end()
                    raise RuntimeError(f"rank {rank}: {error}")
        return [results[rank] for rank in range(len(self.pipes))]

    def end(self) -> None:
        ranks.cache_clear()
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self.folder.cleanup()


@cache
def ranks(world: int) -> Ranks:
    """The processes of this test run; started when they are first asked for."""
    found = Ranks(world)
    atexit.register(found.end)
    return found


def _serve(rank: int, world: int, store: str, pipe: Connection) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=PATIENCE)
    while True:
        try:
            program, args = pipe.recv()
        except EOFError:  # the test run has ended
            return
        try:
            pipe.send((None, program(rank, *args)))
        except Exception:
            pipe.send((traceback.format_exc(), None))

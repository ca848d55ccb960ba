"""One thread a rank: real values through every collective in one process, without start-up cost.

For tests and numeric checks. Sums are taken in rank order, so runs repeat to the last bit.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from meshwright.comm.grid import DENSE, Axes, ParallelismDims
from meshwright.comm.scope import View, set_current_mesh
from meshwright.comm.transport import Alone, Reduction, Transport
from meshwright.errors import Problem, RunError

T = TypeVar("T")

_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}


class _Meeting:
    """Where the ranks of one axis meet: each brings a value and takes everybody's."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.brought: list[Any] = [None] * size
        self.mail = {(i, j): queue.SimpleQueue[Tensor]() for i in range(size) for j in range(size)}

    def exchange(self, index: int, what: str, value: T) -> list[T]:
        self.brought[index] = what, value
        self.barrier.wait()
        taken = list(self.brought)
        self.barrier.wait()
        if any(other != what for other, _ in taken):
            calls = ", ".join(f"rank {i}: {other}" for i, (other, _) in enumerate(taken))
            raise RunError(Problem(where="collective", what=calls, why="ranks of one axis must make the same calls"))
        return [value for _, value in taken]


class Thread(Transport):
    """The ranks of one axis as threads of this process."""

    def __init__(self, name: str, size: int, index: int, meeting: _Meeting) -> None:
        super().__init__(name, size, index)
        self.meeting = meeting

    def all_reduce(self, x: Tensor, reduction: Reduction = "sum") -> Tensor:
        parts = self._exchange(f"all_reduce {reduction} {tuple(x.shape)} {x.dtype}", x)
        total = parts[0].clone()
        for part in parts[1:]:
            total = _REDUCE[reduction](total, part)
        return total

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._exchange(f"all_gather {tuple(x.shape)} {x.dtype}", x))

    def reduce_scatter(self, x: Tensor) -> Tensor:
        parts = self._exchange(f"reduce_scatter {tuple(x.shape)} {x.dtype}", x)
        total = parts[0].chunk(self.size)[self.index].clone()
        for part in parts[1:]:
            total = total + part.chunk(self.size)[self.index]
        return total

    def all_to_all(self, x: Tensor, receive: list[int], send: list[int]) -> Tensor:
        pieces = self._exchange(f"all_to_all {x.dtype}", x.split(send))
        mine = [theirs[self.index] for theirs in pieces]
        found = [len(piece) for piece in mine]
        if found != receive:
            what = f"axis {self.name!r} rank {self.index} expects {receive} rows and is sent {found}"
            raise RunError(Problem(where="all_to_all", what=what, why="both sides of an exchange state its sizes"))
        return torch.cat(mine)

    def send(self, x: Tensor, to: int) -> None:
        self.meeting.mail[self.index, to].put(x.detach().clone())

    def recv(self, like: Tensor, source: int) -> Tensor:
        return self.meeting.mail[source, self.index].get(timeout=60)

    def _exchange(self, what: str, value: T) -> list[T]:
        return self.meeting.exchange(self.index, what, value)


def run_ranks(dims: ParallelismDims, program: Callable[[int], T], axes: Axes = DENSE) -> list[T]:
    """`program(rank)` on `dims.world` threads, each inside its view of `axes`; their results in rank order.

    Errors: the first rank's error is raised here; the others, waiting for it, are let go.
    """
    meetings: dict[tuple[str, tuple[int, ...]], _Meeting] = {}
    for rank in range(dims.world):
        for name, parts in axes.items():
            peers = dims.peers(rank, parts)
            meetings.setdefault((name, peers), _Meeting(len(peers)))

    def transport(name: str, parts: tuple[str, ...], rank: int) -> Transport:
        peers = dims.peers(rank, parts)
        return Thread(name, len(peers), peers.index(rank), meetings[name, peers]) if len(peers) > 1 else Alone(name)

    results: list[Any] = [None] * dims.world
    failures: list[BaseException] = []

    def body(rank: int) -> None:
        try:
            with set_current_mesh(View({name: transport(name, parts, rank) for name, parts in axes.items()})):
                results[rank] = program(rank)
        except threading.BrokenBarrierError:
            pass  # another rank failed first; its error is the one to show
        except BaseException as error:
            failures.append(error)
            for meeting in meetings.values():
                meeting.barrier.abort()

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(dims.world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results

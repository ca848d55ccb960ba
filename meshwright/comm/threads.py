"""One thread a rank: real values through every collective in one process, without start-up cost.

For tests and numeric checks. Sums are taken in rank order, so runs repeat to the last bit. Ranks that wait for each
other in vain are told so at once.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from meshwright.comm.grid import DENSE, Axes, ParallelismDims
from meshwright.comm.number import Origin, Source, Whole
from meshwright.comm.scope import set_current_mesh
from meshwright.comm.transport import Alone, Reduction, Transport
from meshwright.comm.view import View
from meshwright.errors import Problem, RunError

T = TypeVar("T")

_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}


class _LetGo(Exception):
    """Another rank failed first; its error is the one to show."""


class _Room:
    """Where all ranks of a run wait for one another."""

    def __init__(self, world: int) -> None:
        self.changed = threading.Condition()
        self.running = set(range(world))
        self.waiting: dict[int, tuple[str, Callable[[], bool]]] = {}
        self.over = False

    def wait(self, rank: int, what: str, ready: Callable[[], bool]) -> None:
        """Wait, holding `changed`, until `ready()`.

        Errors: `RunError` where no rank can go on any more.
        """
        self.changed.notify_all()
        self.waiting[rank] = what, ready
        try:
            self._demand_progress()
            self.changed.wait_for(lambda: self.over or ready())
        finally:
            del self.waiting[rank]
        if not ready():
            raise _LetGo

    def leave(self, rank: int) -> None:
        """The rank's program has ended.

        Errors: `RunError` where the others wait for a call that it did not make.
        """
        with self.changed:
            self.running.remove(rank)
            self._demand_progress()

    def end(self) -> None:
        """A rank failed: let the others go."""
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def _demand_progress(self) -> None:
        if self.over or not self.waiting or self.waiting.keys() != self.running:
            return
        if not any(ready() for _, ready in self.waiting.values()):
            calls = ", ".join(f"rank {rank}: {what}" for rank, (what, _) in sorted(self.waiting.items()))
            raise RunError(
                Problem(
                    where="collective",
                    what=f"every rank has ended or waits: {calls}",
                    why="the ranks of an axis must make the same calls in the same order",
                )
            )


class _Meeting:
    """Where the ranks of one axis exchange values: the n-th call of one meets the n-th call of each other."""

    def __init__(self, room: _Room, axis: str, ranks: tuple[int, ...]) -> None:
        self.room, self.axis, self.ranks = room, axis, ranks
        self.turns = [0] * len(ranks)
        self.tables: defaultdict[int, dict[int, tuple[str, Any]]] = defaultdict(dict)
        self.mail: defaultdict[tuple[int, int], deque[Tensor]] = defaultdict(deque)

    def exchange(self, index: int, what: str, value: T) -> list[T]:
        """Bring `value`; take what each rank of the axis has brought, in their order."""
        with self.room.changed:
            turn = self.turns[index]
            self.turns[index] += 1
            table = self.tables[turn]
            table[index] = what, value
            self.room.wait(self.ranks[index], f"{what} on {self.axis!r}", lambda: len(table) == len(self.ranks))
            self.tables.pop(turn, None)
        if any(other != what for other, _ in table.values()):
            calls = ", ".join(f"rank {self.ranks[i]}: {other}" for i, (other, _) in sorted(table.items()))
            raise RunError(Problem(where="collective", what=calls, why="ranks of one axis must make the same calls"))
        return [table[i][1] for i in range(len(self.ranks))]

    def post(self, index: int, to: int, value: Tensor) -> None:
        with self.room.changed:
            self.mail[index, to].append(value)
            self.room.changed.notify_all()

    def fetch(self, index: int, source: int) -> Tensor:
        letters = self.mail[source, index]
        with self.room.changed:
            what = f"recv from place {source} on {self.axis!r}"
            self.room.wait(self.ranks[index], what, lambda: bool(letters))
            return letters.popleft()


class Thread(Transport):
    """The ranks of one axis as threads of this process."""

    def __init__(self, name: str, rank: int, meeting: _Meeting, axes: Mapping[str, int] | None = None) -> None:
        super().__init__(name, len(meeting.ranks), meeting.ranks.index(rank), axes)
        self.meeting = meeting

    def all_reduce(self, x: Tensor, reduction: Reduction = "sum") -> Tensor:
        return _total(self._exchange(f"all_reduce {reduction} {tuple(x.shape)} {x.dtype}", x), reduction)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._exchange(f"all_gather {tuple(x.shape)} {x.dtype}", x))

    def reduce_scatter(self, x: Tensor) -> Tensor:
        parts = self._exchange(f"reduce_scatter {tuple(x.shape)} {x.dtype}", x)
        return _total([part.chunk(self.size)[self.index] for part in parts])

    def all_to_all(self, x: Tensor, receive: list[int], send: list[int]) -> Tensor:
        brought = self.meeting.exchange(self.index, f"all_to_all {x.dtype}", _copy(x).split(send))
        mine = [theirs[self.index] for theirs in brought]
        found = [len(piece) for piece in mine]
        if found != receive:
            what = f"axis {self.name!r} rank {self.index} expects {receive} rows and is sent {found}"
            raise RunError(Problem(where="all_to_all", what=what, why="both sides of an exchange state its sizes"))
        return torch.cat(mine)

    def send(self, x: Tensor, to: int) -> None:
        self.meeting.post(self.index, to, _copy(x))

    def recv(self, like: Tensor, source: int) -> Tensor:
        return self.meeting.fetch(self.index, source)

    def _exchange(self, what: str, x: Tensor) -> list[Tensor]:
        return self.meeting.exchange(self.index, what, _copy(x))


def _copy(x: Tensor) -> Tensor:
    """What others may read at any later time, whatever this rank writes into `x` in the meantime."""
    return x.detach().clone()


def _total(parts: Sequence[Tensor], reduction: Reduction = "sum") -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total = _REDUCE[reduction](total, part)
    return total


def run_ranks(dims: ParallelismDims, program: Callable[[int], T], axes: Axes = DENSE) -> list[T]:
    """`program(rank)` on `dims.world` threads, each inside its view of `axes`; their results in rank order.

    Errors: the first rank's error is raised here; the others, waiting for it, are let go.
    """
    room = _Room(dims.world)
    meetings: dict[tuple[str, tuple[int, ...]], _Meeting] = {}
    degrees = dims.degrees(axes)

    def joined(rank: int, names: tuple[str, ...]) -> Transport:
        name, parts = ",".join(names), tuple(part for name in names for part in axes[name])
        peers = dims.peers(rank, parts)
        if len(peers) == 1:
            alone = Alone(name)
            alone.mesh_axis = dims.mesh_axis(parts, name)
            return alone
        meeting = meetings.setdefault((name, peers), _Meeting(room, name, peers))
        found = Thread(name, rank, meeting, {name: degrees[name] for name in names})
        found.mesh_axis = dims.mesh_axis(parts, name)
        return found

    views = [View({name: joined(rank, (name,)) for name in axes}, partial(joined, rank)) for rank in range(dims.world)]

    results: list[Any] = [None] * dims.world
    failures: list[BaseException] = []

    own = Origin(Source.RANK, dims.active(axes), "the rank")

    def body(rank: int) -> None:
        try:
            with set_current_mesh(views[rank]):
                results[rank] = program(Whole(rank, own))
            room.leave(rank)
        except _LetGo:
            pass
        except BaseException as error:
            failures.append(error)
            room.end()

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(dims.world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results

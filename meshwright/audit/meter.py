"""What is sent: collectives that are called on shapes, and how many bytes of each a rank sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from meshwright.check import is_type_checking, layout_of, no_typecheck
from meshwright.check.function_ranks import is_trial
from meshwright.check.tag import read, typed, write
from meshwright.comm.collectives import reinterpret
from meshwright.comm.grid import DENSE, Axes, ParallelismDims
from meshwright.comm.number import Origin, Source, Whole
from meshwright.comm.scope import View
from meshwright.comm.shapes import Shapes
from meshwright.comm.transport import Alone, Reduction
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import P, R, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout


def sent(op: str, ranks: int, held: int) -> int:
    """Bytes that a rank sends in one collective over `ranks`, by the ring algorithms.

    held: bytes that the rank brings: its piece to an all_gather, else the whole.
    """
    if op == "all_gather":
        return (ranks - 1) * held
    if op == "all_reduce":
        return 2 * (ranks - 1) * held // ranks
    if op in ("reduce_scatter", "all_to_all"):
        return (ranks - 1) * held // ranks
    return 0


@dataclass
class Meter:
    """Calls of collectives inside modules. calls: (module, axis, op) -> [how often, bytes sent], backward: likewise.

    A collective in backward answers the last one of its kind in forward that was not answered yet.
    """

    calls: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    backward: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    path: str = "step"
    _unanswered: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @contextmanager
    def at(self, path: str) -> Iterator[None]:
        """What is called in the block is called by the module `path`."""
        before, self.path = self.path, path
        try:
            yield
        finally:
            self.path = before

    def note(self, axis: str, op: str, ranks: int, x: Tensor) -> None:
        """One call on `x`, as the rank brings it."""
        if is_trial():
            return
        waiting = self._unanswered.setdefault((axis, op), [])
        if torch._C._current_graph_task_id() == -1:
            calls, path = self.calls, self.path
            if x.is_floating_point():
                waiting.append(path)
        else:
            calls, path = self.backward, waiting.pop() if waiting else self.path
        row = calls.setdefault((path, axis, op), [0, 0])
        row[0] += 1
        row[1] += sent(op, ranks, x.numel() * x.element_size())


class Metered(Shapes):
    """The ranks of an axis as far as shapes tell; every call is noted, and what it returns has its type.

    stated: the axes on which types are stated, all of whose ranks take part.
    """

    def __init__(self, name: str, size: int, index: int, meter: Meter, stated: tuple[str, ...] = ()) -> None:
        super().__init__(name, size, index)
        self.size = Whole(size, Origin(Source.DEGREE, frozenset(stated), f"the ranks of {name!r}"))
        self.meter, self.stated = meter, stated

    def part(self, x: Tensor) -> Tensor:
        known = layout_of(x)
        for axis in self.stated:
            x = reinterpret(x, axis, src=V, dst=P) if known.get(axis) is V else x
        return x

    def all_reduce(self, x: Tensor, reduction: Reduction = "sum") -> Tensor:
        self.meter.note(self.name, "all_reduce", self.size, x)
        return self._typed(x, super().all_reduce(x, reduction), R, reduction)

    def all_gather(self, x: Tensor) -> Tensor:
        self.meter.note(self.name, "all_gather", self.size, x)
        return self._typed(x, super().all_gather(x), R)

    def reduce_scatter(self, x: Tensor) -> Tensor:
        self.meter.note(self.name, "reduce_scatter", self.size, x)
        return self._typed(x, super().reduce_scatter(x), V)

    def all_to_all(self, x: Tensor, receive: list[int], send: list[int]) -> Tensor:
        self.meter.note(self.name, "all_to_all", self.size, x)
        return self._typed(x, super().all_to_all(x, receive, send), V)

    def _typed(self, x: Tensor, result: Tensor, kind: SpmdType, reduction: Reduction | None = None) -> Tensor:
        """What a collective of local values returns, `kind` over its ranks. reduction: of one that keeps the dims.

        Errors: `SpmdTypeError` where a gradient would have to go back, or what is no sum is made of parts of a sum.
        """
        known = layout_of(x)
        if not is_type_checking() or not known:
            return result
        if x.requires_grad and torch.is_grad_enabled():
            raise SpmdTypeError(
                Problem(
                    where=f"a collective over {self.name!r}",
                    what="it is called on a tensor that wants a gradient",
                    why="the transport of an axis passes no gradient on",
                    fix="a collective of meshwright.comm.collectives; or an autograd.Function around the call",
                )
            )
        if reduction not in (None, "sum") and P in known.values():
            raise SpmdTypeError(
                Problem(
                    where=f"a collective over {self.name!r}",
                    what=f"{reduction} is taken of {SpmdLayout(known)}",
                    why="what is made of the parts of a sum is not made of the sum",
                    fix="sum the parts first",
                )
            )
        tag = read(x)
        if reduction is None or any(isinstance(tag.layout.get(axis), Shard) for axis in self.stated):
            tag = typed(SpmdLayout({axis: V if isinstance(held, Shard) else held for axis, held in known.items()}))
        layout = {axis: kind if axis in self.stated else held for axis, held in tag.layout.items()}
        with no_typecheck():
            fresh = torch.empty_like(result)
        write(fresh, typed(SpmdLayout(layout), factors=tag.factors))
        return fresh


def metered_view(
    dims: ParallelismDims, rank: int, meter: Meter, stated: Axes = MappingProxyType({}), axes: Axes = DENSE
) -> View:
    """The axes of a view as `rank` would see them. stated: those on which types are stated."""
    degrees, index = dims.degrees(axes), dims.index(rank, axes)
    whole = {axis: _covered(axes[axis], stated, dims) for axis in degrees}
    return View(
        {
            axis: Metered(axis, n, index[axis], meter, whole[axis]) if n > 1 else Alone(axis)
            for axis, n in degrees.items()
        }
    )


def _covered(parts: Sequence[str], stated: Axes, dims: ParallelismDims) -> tuple[str, ...]:
    """The stated axes whose ranks are all among those of an axis with these parts."""
    return tuple(
        axis for axis, mine in stated.items() if {part for part in mine if dims.base[part] > 1}.issubset(parts)
    )

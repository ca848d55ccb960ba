"""What is sent: collectives that are called on shapes, and how many bytes of each a rank sends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from meshwright.comm.grid import DENSE, Axes, ParallelismDims
from meshwright.comm.scope import View
from meshwright.comm.shapes import Shapes
from meshwright.comm.transport import Alone, Reduction


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
    """Calls of collectives inside modules. calls: (module, axis, op) -> [how often, bytes sent]."""

    calls: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    path: str = "step"

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
        row = self.calls.setdefault((self.path, axis, op), [0, 0])
        row[0] += 1
        row[1] += sent(op, ranks, x.numel() * x.element_size())


class Metered(Shapes):
    """The ranks of an axis as far as shapes tell; every call is noted."""

    def __init__(self, name: str, size: int, index: int, meter: Meter) -> None:
        super().__init__(name, size, index)
        self.meter = meter

    def all_reduce(self, x: Tensor, reduction: Reduction = "sum") -> Tensor:
        self.meter.note(self.name, "all_reduce", self.size, x)
        return super().all_reduce(x, reduction)

    def all_gather(self, x: Tensor) -> Tensor:
        self.meter.note(self.name, "all_gather", self.size, x)
        return super().all_gather(x)

    def reduce_scatter(self, x: Tensor) -> Tensor:
        self.meter.note(self.name, "reduce_scatter", self.size, x)
        return super().reduce_scatter(x)

    def all_to_all(self, x: Tensor, receive: list[int], send: list[int]) -> Tensor:
        self.meter.note(self.name, "all_to_all", self.size, x)
        return super().all_to_all(x, receive, send)


def metered_view(dims: ParallelismDims, rank: int, meter: Meter, axes: Axes = DENSE) -> View:
    """The axes of a view as `rank` would see them."""
    degrees, index = dims.degrees(axes), dims.index(rank, axes)
    return View({axis: Metered(axis, n, index[axis], meter) if n > 1 else Alone(axis) for axis, n in degrees.items()})

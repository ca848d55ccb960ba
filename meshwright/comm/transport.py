"""`Transport`: the ranks of one axis and how they exchange plain tensors. One instance per axis and rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from meshwright.comm.mesh_axis import MeshAxis

Reduction = Literal["sum", "max", "min"]


class Transport(ABC):
    """The seam to the network. All methods are collective over the axis and return new tensors.

    name: the axis; size: its number of ranks; index: this rank's place on it.
    mesh_axis: which ranks those are, where that is known.
    axes: the axes that are flattened into it, each with its number of ranks, the outermost first; itself if it is one.
    Tensors are exchanged along dim 0; `steps.py` builds every other dim from that.
    """

    def __init__(self, name: str, size: int, index: int, axes: Mapping[str, int] | None = None) -> None:
        self.name, self.size, self.index = name, size, index
        self.axes = dict(axes) if axes is not None else {name: size}
        self.mesh_axis: MeshAxis | None = None
        self.bound: dict[Any, Any] = {}  # steps already bound to this axis, see collectives.py

    def part(self, x: Tensor) -> Tensor:
        """`x`, which is this rank's part of a sum over the axis: said to whoever checks; nothing moves."""
        return x

    @abstractmethod
    def all_reduce(self, x: Tensor, reduction: Reduction = "sum") -> Tensor:
        """[...] on each rank -> [...], the reduction over the ranks."""

    @abstractmethod
    def all_gather(self, x: Tensor) -> Tensor:
        """[m, ...] on each rank -> [size * m, ...]."""

    @abstractmethod
    def reduce_scatter(self, x: Tensor) -> Tensor:
        """[size * m, ...] on each rank -> [m, ...], this rank's part of the sum."""

    @abstractmethod
    def all_to_all(self, x: Tensor, receive: list[int], send: list[int]) -> Tensor:
        """[sum(send), ...] -> [sum(receive), ...]; send[i] rows go to rank i, receive[i] rows come from it."""

    def deal(self, counts: Tensor, rows: int) -> tuple[list[int], list[int], Tensor]:
        """How many rows go where, of rows that are sorted by bin; every rank of the axis owns m of the bins.

        counts[size * m]: rows of this rank for each bin, those of the axis's first rank first. rows: their sum.
        Returns the rows that go to each rank, those that come from each, and received[size, m]: the rows for each own
        bin from each rank. The lists are what `all_to_all` takes; the host waits for them once.
        """
        each = [counts.shape[0] // self.size] * self.size
        received = self.all_to_all(counts, each, each).view(self.size, -1)
        send, receive = torch.stack((counts.view(self.size, -1).sum(1), received.sum(1))).tolist()
        return send, receive, received

    @abstractmethod
    def send(self, x: Tensor, to: int) -> None:
        """Send `x` to the rank at place `to` of the axis, which receives it."""

    @abstractmethod
    def recv(self, like: Tensor, source: int) -> Tensor:
        """A tensor of the shape and dtype of `like` from the rank at place `source`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}: {self.index} of {self.size})"


class Reordered(Transport):
    """The ranks of `inner` in another order: place i is the place `order[i]` of `inner`."""

    def __init__(self, name: str, inner: Transport, order: tuple[int, ...], axes: Mapping[str, int]) -> None:
        super().__init__(name, inner.size, order.index(inner.index), axes)
        self.inner, self.order = inner, order
        self.inverse = tuple(sorted(range(len(order)), key=order.__getitem__))

    def all_reduce(self, x: Tensor, reduction: Reduction = "sum") -> Tensor:
        return self.inner.all_reduce(x, reduction)

    def all_gather(self, x: Tensor) -> Tensor:
        return _permuted(self.inner.all_gather(x), [x.shape[0]] * self.size, self.order)

    def reduce_scatter(self, x: Tensor) -> Tensor:
        return self.inner.reduce_scatter(_permuted(x, [x.shape[0] // self.size] * self.size, self.inverse))

    def all_to_all(self, x: Tensor, receive: list[int], send: list[int]) -> Tensor:
        inner_receive, inner_send = ([sizes[place] for place in self.inverse] for sizes in (receive, send))
        found = self.inner.all_to_all(_permuted(x, send, self.inverse), inner_receive, inner_send)
        return _permuted(found, inner_receive, self.order)

    def deal(self, counts: Tensor, rows: int) -> tuple[list[int], list[int], Tensor]:
        each = [counts.shape[0] // self.size] * self.size
        send, receive, received = self.inner.deal(_permuted(counts, each, self.inverse), rows)
        order = list(self.order)
        return [send[place] for place in order], [receive[place] for place in order], received[order]

    def send(self, x: Tensor, to: int) -> None:
        self.inner.send(x, self.order[to])

    def recv(self, like: Tensor, source: int) -> Tensor:
        return self.inner.recv(like, self.order[source])


def _permuted(x: Tensor, sizes: list[int], order: tuple[int, ...]) -> Tensor:
    """The pieces of `x` along dim 0, `sizes` long, in the order given."""
    pieces = x.split(sizes)
    return torch.cat([pieces[place] for place in order])


class Alone(Transport):
    """An axis of one rank: nothing moves."""

    def __init__(self, name: str) -> None:
        super().__init__(name, 1, 0)

    def all_reduce(self, x: Tensor, reduction: Reduction = "sum") -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x

    def reduce_scatter(self, x: Tensor) -> Tensor:
        return x

    def all_to_all(self, x: Tensor, receive: list[int], send: list[int]) -> Tensor:
        return x

    def deal(self, counts: Tensor, rows: int) -> tuple[list[int], list[int], Tensor]:
        return [rows], [rows], counts.view(1, -1)

    def send(self, x: Tensor, to: int) -> None:
        raise ValueError(f"axis {self.name!r} has one rank: there is nobody to send to")

    def recv(self, like: Tensor, source: int) -> Tensor:
        raise ValueError(f"axis {self.name!r} has one rank: there is nobody to receive from")

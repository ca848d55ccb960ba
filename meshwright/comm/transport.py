"""`Transport`: the ranks of one axis and how they exchange plain tensors. One instance per axis and rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from torch import Tensor

Reduction = Literal["sum", "max", "min"]


class Transport(ABC):
    """The seam to the network. All methods are collective over the axis and return new tensors.

    name: the axis; size: its number of ranks; index: this rank's place on it.
    Tensors are exchanged along dim 0; `steps.py` builds every other dim from that.
    """

    def __init__(self, name: str, size: int, index: int) -> None:
        self.name, self.size, self.index = name, size, index
        self.bound: dict[Any, Any] = {}  # steps already bound to this axis, see collectives.py

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

    @abstractmethod
    def send(self, x: Tensor, to: int) -> None:
        """Send `x` to the rank at place `to` of the axis, which receives it."""

    @abstractmethod
    def recv(self, like: Tensor, source: int) -> Tensor:
        """A tensor of the shape and dtype of `like` from the rank at place `source`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}: {self.index} of {self.size})"


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

    def send(self, x: Tensor, to: int) -> None:
        raise ValueError(f"axis {self.name!r} has one rank: there is nobody to send to")

    def recv(self, like: Tensor, source: int) -> Tensor:
        raise ValueError(f"axis {self.name!r} has one rank: there is nobody to receive from")

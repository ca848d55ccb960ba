"""The transport that only knows shapes: collectives without anybody to talk to, for checks on one process."""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.comm.grid import DENSE, Axes, ParallelismDims
from meshwright.comm.scope import View
from meshwright.comm.transport import Alone, Reduction, Transport


class Shapes(Transport):
    """The ranks of one axis, as far as shapes tell. Values are undefined: use it with tensors on meta."""

    def all_reduce(self, x: Tensor, reduction: Reduction = "sum") -> Tensor:
        return torch.empty_like(x)

    def all_gather(self, x: Tensor) -> Tensor:
        return x.new_empty((self.size * x.shape[0], *x.shape[1:]))

    def reduce_scatter(self, x: Tensor) -> Tensor:
        return x.new_empty((x.shape[0] // self.size, *x.shape[1:]))

    def all_to_all(self, x: Tensor, receive: list[int], send: list[int]) -> Tensor:
        return x.new_empty((sum(receive), *x.shape[1:]))

    def send(self, x: Tensor, to: int) -> None:
        pass  # nobody is there

    def recv(self, like: Tensor, source: int) -> Tensor:
        return torch.empty_like(like)


def shape_view(dims: ParallelismDims, rank: int, axes: Axes = DENSE) -> View:
    """The axes of a view as `rank` would see them."""
    degrees, index = dims.degrees(axes), dims.index(rank, axes)
    return View({axis: Shapes(axis, n, index[axis]) if n > 1 else Alone(axis) for axis, n in degrees.items()})

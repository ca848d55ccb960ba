"""The transport that only knows shapes: collectives without anybody to talk to, for checks on one process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from meshwright.codes import Code
from meshwright.comm.grid import DENSE, Axes, ParallelismDims
from meshwright.comm.mesh_axis import MeshAxis
from meshwright.comm.transport import Alone, Reduction, Transport
from meshwright.comm.view import View
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import WHOLE, demand


class Shapes(Transport):
    """The ranks of one axis, as far as shapes tell. Values that come from others are zeros."""

    def __init__(self, name: str, size: int, index: int, axes: Mapping[str, int] | None = None) -> None:
        super().__init__(name, size, index, axes)
        self._dealt: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}  # rows out and in, of each deal, and back

    def all_reduce(self, x: Tensor, reduction: Reduction = "sum") -> Tensor:
        return torch.zeros_like(x)

    def all_gather(self, x: Tensor) -> Tensor:
        return x.new_zeros((self.size * x.shape[0], *x.shape[1:]))

    def reduce_scatter(self, x: Tensor) -> Tensor:
        return x.new_zeros((x.shape[0] // self.size, *x.shape[1:]))

    def all_to_all(self, x: Tensor, receive: list[int], send: list[int]) -> Tensor:
        if sum(send) != x.shape[0]:
            raise SpmdTypeError(_other_rows(self.name, x.shape[0], send))
        if self._dealt and x.is_floating_point() and (tuple(send), tuple(receive)) not in self._dealt:
            raise SpmdTypeError(_other_deal(self.name, send, receive, next(iter(self._dealt))))
        return x.new_zeros((sum(receive), *x.shape[1:]))

    def deal(self, counts: Tensor, rows: int) -> tuple[list[int], list[int], Tensor]:
        """Drawn, unevenly and always the same, as if every rank had `rows` rows: wrong numbers show as wrong shapes."""
        table = _table(rows, self.size)
        receive = [row[self.index] for row in table]
        each = counts.shape[0] // self.size
        bins = counts.new_tensor([_drawn(number, each, source) for source, number in enumerate(receive)])
        zeros = self.all_to_all(counts, [each] * self.size, [each] * self.size)
        out, back = tuple(table[self.index]), tuple(receive)
        self._dealt |= {(out, back): None, (back, out): None}
        return list(table[self.index]), receive, zeros.view(self.size, each) + bins

    def send(self, x: Tensor, to: int) -> None:
        pass  # nobody is there

    def recv(self, like: Tensor, source: int) -> Tensor:
        return torch.zeros_like(like)


@cache
def _table(rows: int, size: int) -> list[list[int]]:
    """[source][destination] -> rows; every source has `rows` in all."""
    return [_drawn(rows, size, source) for source in range(size)]


def _drawn(total: int, parts: int, row: int) -> list[int]:
    """A whole number cut into uneven parts, in each row of a table otherwise."""
    weights = [2 * parts + place + place * row % parts for place in range(parts)]
    ends = [total * end // sum(weights) for end in accumulate(weights)]
    return [end - start for start, end in pairwise([0, *ends])]


def _other_rows(axis: str, rows: int, send: list[int]) -> Problem:
    return Problem(
        where=f"all_to_all over {axis!r}",
        what=f"{send} rows are sent, {sum(send)} in all, of a tensor of {rows} rows",
        why="every row goes to one rank",
        fix="the rows sent to each rank, as `deal` of the axis gives them",
        code=Code.SHAPE,
    )


def _other_deal(axis: str, send: list[int], receive: list[int], dealt: tuple[tuple[int, ...], ...]) -> Problem:
    out, back = map(list, dealt)
    return Problem(
        where=f"all_to_all over {axis!r}",
        what=f"{send} rows are sent and {receive} come, where {out} and {back} were dealt on the way out",
        why="what a rank sends to another one is what that one expects from it",
        fix="send and receive as `deal` of the axis gives them, and the other way round on the way back",
        code=Code.SHAPE,
    )


def shape_view(dims: ParallelismDims, rank: int, axes: Axes = DENSE) -> View:
    """The axes of a view as `rank` would see them."""
    return _shapes({axis: dims.mesh_axis(parts, axis) for axis, parts in axes.items()}, rank)


def mesh(*, rank: int = 0, **degree: int) -> View:
    """The axes of a mesh as `rank` would see them on one process: `mesh(dp=2, tp=4)`, the first axis outermost.

    Collectives know only shapes: use it to check, with tensors on meta or under `typecheck`.

    Errors: `SpmdTypeError` for a degree below 1 and for a rank that the mesh does not have.
    """
    for name, count in degree.items():
        if type(count) is not int or count < 1:
            raise SpmdTypeError(
                Problem(
                    where=f"axis {name!r}",
                    what=f"{count!r} ranks",
                    why="a degree counts the ranks of an axis",
                    fix=f"{name} = 1 or more, a whole number",
                    code=Code.MESH,
                )
            )
    strides = [math.prod(list(degree.values())[place + 1 :]) for place in range(len(degree))]
    axes = {name: MeshAxis(((n, s),), name) for (name, n), s in zip(degree.items(), strides, strict=True)}
    world = math.prod(degree.values())
    demand("mesh", "rank", rank, WHOLE)
    if not 0 <= rank < world:
        raise SpmdTypeError(
            Problem(
                where="mesh",
                what=f"rank {rank} of {world} ranks",
                why="ranks are counted from 0",
                fix=f"rank = 0 to {world - 1}",
                code=Code.MESH,
            )
        )
    return _shapes(axes, rank)


def _shapes(axes: Mapping[str, MeshAxis], rank: int) -> View:
    transports: dict[str, Transport] = {}
    for name, pattern in axes.items():
        found = Shapes(name, pattern.size, pattern.index(rank)) if pattern.size > 1 else Alone(name)
        found.mesh_axis = pattern
        transports[name] = found

    def join(axes: tuple[str, ...]) -> Transport:
        place = 0
        for axis in axes:
            place = place * transports[axis].size + transports[axis].index
        degree = {axis: transports[axis].size for axis in axes}
        return Shapes(",".join(axes), math.prod(degree.values()), place, degree)

    return View(transports, join)

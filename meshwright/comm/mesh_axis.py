"""`MeshAxis`: which ranks an axis joins, as a value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch.distributed as dist

from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import NAME, PAIRS, demand


@dataclass(frozen=True)
class MeshAxis:
    """The pattern of an axis's ranks. Axes are equal where they join the same ranks, whatever they are called.

    atoms: (number of ranks, distance between them), the outermost first; neighbours that are one run are one atom.
    name: what the axis is called, "" where that is not known.
    """

    atoms: tuple[tuple[int, int], ...]
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        demand("MeshAxis", "atoms", self.atoms, PAIRS)
        demand("MeshAxis", "name", self.name, NAME)
        merged: list[tuple[int, int]] = []
        for size, stride in self.atoms:
            if size < 1 or stride < 1:
                raise SpmdTypeError(
                    Problem(
                        where=f"axis {self.name!r}" if self.name else "MeshAxis",
                        what=f"{size} ranks at a distance of {stride}",
                        why="an axis has one rank or more, each at its own place",
                        fix="MeshAxis.of(size, stride) with both from 1 on",
                        code=Code.MESH,
                    )
                )
            if size == 1:
                continue
            if merged and merged[-1][1] == size * stride:
                size, stride = size * merged.pop()[0], stride
            merged.append((size, stride))
        object.__setattr__(self, "atoms", tuple(merged))

    @staticmethod
    def of(size_or_group: int | dist.ProcessGroup, stride: int | None = None) -> MeshAxis:
        """`of(4, 2)`: four ranks, each two behind the one before. `of(group)`: the ranks of a process group.

        Errors: `SpmdTypeError` where the ranks of a group are in no regular distance.
        """
        if isinstance(size_or_group, int):
            return MeshAxis(((size_or_group, 1 if stride is None and size_or_group == 1 else stride or 0),))
        named = getattr(size_or_group, "group_desc", "")
        name = named if named not in ("undefined", "default_pg") else ""
        return MeshAxis.over(dist.get_process_group_ranks(size_or_group), name)

    @staticmethod
    def over(ranks: Iterable[int], name: str = "") -> MeshAxis:
        """The axis that joins these ranks, given in order.

        Errors: `SpmdTypeError` where they are in no regular distance.
        """
        ranks = tuple(ranks)
        atoms: list[tuple[int, int]] = []
        left = [rank - ranks[0] for rank in ranks]
        while len(left) > 1:
            stride = left[1]
            count = next((i for i, place in enumerate(left) if place != i * stride), len(left))
            whole = len(left) % count == 0
            if stride < 1 or not whole or left != [first + i * stride for first in left[::count] for i in range(count)]:
                raise SpmdTypeError(
                    Problem(
                        where=f"axis {name!r}" if name else "MeshAxis",
                        what=f"ranks {list(ranks)} are in no regular distance",
                        why="an axis is one dimension of a mesh of all ranks, or several flattened",
                        fix="the groups of a device mesh",
                        code=Code.MESH,
                    )
                )
            atoms.insert(0, (count, stride))
            left = left[::count]
        return MeshAxis(tuple(atoms), name)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(size for size, _ in self.atoms)

    def index(self, rank: int) -> int:
        """The place of `rank` on the axis."""
        place = 0
        for size, stride in self.atoms:
            place = place * size + rank // stride % size
        return place

    def ranks(self, rank: int) -> tuple[int, ...]:
        """The ranks that the axis joins with `rank`, in their order."""
        first = rank - sum(rank // stride % size * stride for size, stride in self.atoms)
        steps = (range(0, size * stride, stride) for size, stride in self.atoms)
        return tuple(first + sum(step) for step in itertools.product(*steps))

    def __repr__(self) -> str:
        pattern = " ".join(f"{size}:{stride}" for size, stride in self.atoms) or "1:1"
        return f"MeshAxis({self.name + ' ' if self.name else ''}{pattern})"

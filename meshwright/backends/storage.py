"""How parameters, gradients and optimizer state lie at rest, and what of it training may touch.

At rest a parameter is laid out on the base axes of the mesh: its layout in compute, and the data-parallel ranks on top.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from meshwright.backends.at_rest import on_mesh
from meshwright.comm.grid import BASE, DENSE, DP_SHARD_EP, Axes, ParallelismDims, lower
from meshwright.errors import Problem
from meshwright.types.axes import DP_REPLICATE, DP_SHARD, EFSDP, EP
from meshwright.types.kinds import R
from meshwright.types.layout import SpmdLayout


def contributes(owned: frozenset[str], name: str, layout: SpmdLayout) -> list[Problem]:
    """What is wrong with a parameter's layout at rest where a storage sums its gradient over the axes `owned`."""
    return [
        Problem(
            where=name,
            what=f"{layout[axis]!r} on {axis!r}",
            why=f"this storage cuts parameters over {axis!r} itself, and sums the gradients that ranks contribute",
            fix=f"{axis!r}: R",
        )
        for axis in sorted(owned.intersection(layout))
        if layout[axis] is not R
    ]


@dataclass(frozen=True, kw_only=True)
class StoragePolicy:
    """How parameters go from rest to compute and back.

    precision: in compute, reduce_precision: of the sums of gradients; None as at rest. frees, frees_last: the
    parameters of a block, of the last one, are freed after its forward and gathered anew for its backward. offload: at
    rest all lies in the host's memory.
    """

    precision: torch.dtype | None = None
    reduce_precision: torch.dtype | None = None
    frees: bool = True
    frees_last: bool = False
    offload: bool = False


PLAIN: Final = StoragePolicy()


@dataclass(frozen=True)
class Family:
    """Parameters that are stored over the same data-parallel ranks. On base axes that are on.

    shard: the ranks over which they are cut; replicate: those that hold equal copies.
    """

    shard: tuple[str, ...]
    replicate: tuple[str, ...]

    @property
    def joint(self) -> str:
        """The name of all of `shard` as one axis: a length is dealt over its ranks as one, equal or not."""
        return "+".join(self.shard)

    def ranks(self, degree: Mapping[str, int]) -> int:
        """The number of parts."""
        return math.prod(degree[axis] for axis in self.shard)

    def cut(self, shape: Sequence[int], degree: Mapping[str, int]) -> int:
        """The dim that is cut, of what a rank computes with: the first that divides, so that nothing is filled up."""
        return next((dim for dim, length in enumerate(shape) if length % self.ranks(degree) == 0), 0)


def family(layout: Mapping[str, object], dims: ParallelismDims) -> Family:
    """Of a parameter with this layout in compute: an expert is stored over the ranks that share it."""
    view = dims.view_of(layout)
    shard = (DP_SHARD, DP_SHARD_EP) if view is DENSE else view[EFSDP]
    degree = dims.base
    return Family(
        tuple(axis for axis in shard if degree[axis] > 1), (DP_REPLICATE,) if degree[DP_REPLICATE] > 1 else ()
    )


class Storage(ABC):
    """How parameters lie at rest.

    owned: axes of compute whose gradient sums the storage makes itself, during backward.
    degree, index: base axis, or several joined to one -> its ranks, and this rank's place on it.
    mesh: all ranks on the base axes that are on; None where ranks are no processes.
    """

    owned: frozenset[str] = frozenset()
    mesh: DeviceMesh | None = None

    def __init__(self, dims: ParallelismDims, rank: int) -> None:
        joint = {own.joint: own.shard for own in (family({}, dims), family({EP: R}, dims)) if own.shard}
        axes = {**{axis: (axis,) for axis in BASE}, **joint}
        self.dims, self.degree, self.index = dims, dims.degrees(axes), dims.index(rank, axes)

    def problems(self, name: str, layout: SpmdLayout) -> list[Problem]:
        """Why the parameter `name` cannot lie here; layout: at rest, on the axes of compute."""
        return contributes(self.owned, name, layout)

    @abstractmethod
    def state(self, value: Tensor, layout: SpmdLayout, axes: Axes) -> Tensor:
        """A parameter of global shape on meta -> what stands for this rank's part until `store`."""

    @abstractmethod
    def store(self, model: nn.Module, blocks: Sequence[Sequence[nn.Module]], layouts: Mapping[str, SpmdLayout]) -> None:
        """Take over the parameters of `model`; what of each of `blocks` is of one family is gathered and freed as one.

        layouts: of the states by name, on the axes of compute that are on.
        """

    @abstractmethod
    def rest(self, layout: SpmdLayout, axes: Axes, shape: tuple[int, ...]) -> SpmdLayout:
        """The layout of a parameter of global `shape` in compute, on `axes` -> at rest, on the base axes."""

    @abstractmethod
    def empty(self, value: Tensor, device: torch.device) -> Tensor:
        """A parameter at rest on meta -> the same with memory on `device`, not yet filled."""

    @abstractmethod
    def local(self, value: Tensor) -> Tensor:
        """A parameter or gradient at rest -> this rank's plain part; writes go through."""

    def persist(self, value: Tensor, shape: Sequence[int], layout: SpmdLayout, name: str) -> Tensor:
        """A state at rest, or what lies beside it as an optimizer's mean does -> a DTensor of global `shape` on the
        whole mesh, which shares its memory; the plain tensor on one rank.

        layout: at rest, on the base axes. Errors: `ConfigError` where no DTensor has it.
        """
        return on_mesh(value, shape, layout, self.mesh, name)

    @abstractmethod
    def held(self, model: nn.Module) -> AbstractContextManager[None]:
        """Inside, passes of many micro-batches in any order leave parameters gathered and gradients unsummed; at its
        end the sums over `owned` are made."""

    @abstractmethod
    def accumulate(self, model: nn.Module, last: bool) -> None:
        """Said before each backward: whether it is the last of its step, after which sums over `owned` are made."""


class Replicated(Storage):
    """Every rank keeps its parameters as compute sees them; no gradient is summed during backward."""

    def __init__(self, dims: ParallelismDims, rank: int, mesh: DeviceMesh | None = None) -> None:
        super().__init__(dims, rank)
        self.mesh = mesh

    def state(self, value: Tensor, layout: SpmdLayout, axes: Axes) -> Tensor:
        return value.new_empty(lower(layout, axes).local_shape(tuple(value.shape), self.degree, self.index))

    def store(self, model: nn.Module, blocks: Sequence[Sequence[nn.Module]], layouts: Mapping[str, SpmdLayout]) -> None:
        pass  # they lie as they are

    def rest(self, layout: SpmdLayout, axes: Axes, shape: tuple[int, ...]) -> SpmdLayout:
        return lower(layout, axes)

    def empty(self, value: Tensor, device: torch.device) -> Tensor:
        return torch.empty_like(value, device=device)

    def local(self, value: Tensor) -> Tensor:
        return value.detach()

    def held(self, model: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def accumulate(self, model: nn.Module, last: bool) -> None:
        pass  # gradients add up in place; all sums are made afterwards

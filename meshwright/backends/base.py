"""`Backend`: turns declared layouts into tensors and communication."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from torch import Tensor, nn

from meshwright.backends.storage import Storage
from meshwright.comm.grid import Axes, ParallelismDims
from meshwright.comm.scope import View, set_current_mesh
from meshwright.comm.transport import Reduction, Transport
from meshwright.core.boundary import Crossing, Crossings, install
from meshwright.core.contract import Contract
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition


class Backend(ABC):
    """One instance a run, made where the run is put together.

    dims: the degrees of the run; axes: the axes of compute; pipeline: the ranks that hold other layers.
    """

    dims: ParallelismDims
    axes: Axes
    pipeline: Transport

    @property
    @abstractmethod
    def view(self) -> View:
        """The axes of compute, each with its transport."""

    @abstractmethod
    def state(self, value: Tensor, layout: SpmdLayout) -> Tensor:
        """A global state on meta -> this rank's representation of it, on meta."""

    @abstractmethod
    def enter(self, value: Tensor, layout: SpmdLayout) -> Tensor:
        """A local tensor of the data loader or a pipeline edge -> a tensor of compute.

        Errors: `SpmdTypeError` where the backend cannot express the layout.
        """

    @abstractmethod
    def leave(self, value: Tensor, layout: SpmdLayout) -> Tensor:
        """A tensor of compute -> the plain local tensor."""

    @abstractmethod
    def cross(self, transition: Transition) -> Crossing | None:
        """The function that carries a tensor over a boundary, compiled once; None where nothing changes.

        Errors: `SpmdTypeError`, here where the backend cannot express a layout, in the function where a tensor comes
        that is not as declared.
        """

    def install(self, module: nn.Module, contract: Contract, path: str) -> None:
        """Make the module's forward cross its boundary as the contract says."""

        def named(name: str, change: Transition) -> Crossing | None:
            return self.cross(change)

        install(module, contract, Crossings(argument=named, state=named, output=self.cross), path)

    @property
    @abstractmethod
    def storage(self) -> Storage:
        """How parameters lie at rest."""

    def store(self, model: nn.Module, blocks: Sequence[Sequence[nn.Module]], layouts: Mapping[str, SpmdLayout]) -> None:
        """Put the parameters into their storage; see `Storage.store`."""
        self.storage.store(model, blocks, layouts)

    @abstractmethod
    def total(self, value: Tensor, over: Iterable[str], reduction: Reduction = "sum") -> Tensor:
        """The reduction of a plain scalar or vector over axes."""

    def scope(self) -> AbstractContextManager[View]:
        """The ambient view of one step."""
        return set_current_mesh(self.view)

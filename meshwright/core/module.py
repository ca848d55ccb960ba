"""`Module`: an `nn.Module` that is built from a config and knows its contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from meshwright.comm.grid import ParallelismDims
from meshwright.core.config import Configurable
from meshwright.core.contract import Contract
from meshwright.core.init import Init
from meshwright.core.place import Place
from meshwright.core.sharding import ShardingConfig
from meshwright.errors import Problem


class Module(nn.Module, Configurable):
    """The base of every layer. `forward` is written as for one device.

    config: what the module was built from; None for one that was made without.
    contract: its declared layouts on the axes of this run; None before `parallelize`, and for a module that declares
        nothing.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        """sharding_config: the layouts of states, inputs and outputs; None declares nothing."""

        sharding_config: ShardingConfig | None = None

        def build(self) -> Any:
            module = self.owner(self)
            module.config = self
            return module

        def problems(self, path: str, dims: ParallelismDims) -> list[Problem]:
            """What cannot be cut over `dims` for a reason that the shapes of states do not show."""
            return []

    config: Any = None
    contract: Contract | None = None
    initial: ClassVar[Mapping[str, Init]] = {}

    def __init__(self, config: Any = None) -> None:
        super().__init__()

    def initializers(self) -> Mapping[str, Init]:
        """State name -> its first values. Every parameter and buffer of the module itself has one."""
        return self.initial

    def localize(self, place: Place) -> None:
        """Called once when the module is parallelized: keep what `forward` needs to know of its place."""

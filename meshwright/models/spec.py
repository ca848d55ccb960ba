"""`ModelSpec`: the few numbers that a recipe and the command line say of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.comm.grid import ParallelismDims

if TYPE_CHECKING:
    from meshwright.models.decoder import Decoder
    from meshwright.models.layouts import Plan


@dataclass(kw_only=True)
class ModelSpec(ABC):
    """The numbers of a model family, and how they become modules and layouts."""

    vocab: int
    """number of tokens in the vocabulary"""

    @abstractmethod
    def modules(self) -> Decoder.Config:
        """The tree of module configs, without any sharding."""

    @abstractmethod
    def declare(self, modules: Decoder.Config, plan: Plan) -> None:
        """Attach to every module config its sharding under `plan`."""

    @abstractmethod
    def tp_copies(self, tp: int) -> int:
        """How many neighbouring tp ranks share their key/value heads."""


def dims_of(spec: ModelSpec, *, dp_replicate: int, dp_shard: int, tp: int) -> ParallelismDims:
    """The degrees of a run of this model.

    Errors: `ConfigError` for a degree below 1.
    """
    copies = spec.tp_copies(tp) if tp >= 1 else 1
    return ParallelismDims(dp_replicate=dp_replicate, dp_shard=dp_shard, tp=tp, tp_copy=copies)

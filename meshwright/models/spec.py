"""`ModelSpec`: the few numbers that a recipe and the command line say of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from meshwright.comm.grid import ParallelismDims
from meshwright.errors import ConfigError, Problem, nearest
from meshwright.models.small import smaller

if TYPE_CHECKING:
    from meshwright.models.decoder import Decoder
    from meshwright.models.layouts import Plan


MOST: Final = 10_000_000
"""Of anything that a model counts."""


@dataclass(kw_only=True)
class ModelSpec(ABC):
    """The numbers of a model family, and how they become modules and layouts."""

    absent_at_0: ClassVar[frozenset[str]] = frozenset()
    """Fields that count what a model may do without."""

    vocab: int
    """number of tokens in the vocabulary"""

    def problems(self) -> list[Problem]:
        """What is wrong with the numbers under every layout: whole numbers count something, from 1, or from 0 where a
        model may do without, to `MOST`, and switches are on or off."""
        switches = {field.name: getattr(self, field.name) for field in fields(self) if field.type == "bool"}
        wrong = [
            Problem(where=f"model.{name}", what=f"{value!r}", fix=f"{flag(name)} or {flag(f'no-{name}')}")
            for name, value in switches.items()
            if type(value) is not bool
        ]
        counts = {field.name: getattr(self, field.name) for field in fields(self) if field.type == "int"}
        return wrong + [
            Problem(where=f"model.{name}", what=f"{count!r}", fix=f"{flag(name)} from {self._least(name)} to {MOST}")
            for name, count in counts.items()
            if type(count) is not int or not self._least(name) <= count <= MOST
        ]

    def _least(self, name: str) -> int:
        return 0 if name in self.absent_at_0 else 1

    def small(self, layers: int = 2) -> Self:
        """The same structure in numbers for a quick run, of at most that many blocks; at most eight ranks can split
        it exactly as they can split this one. A family whose fields are named otherwise says here what shrinks."""
        return replace(self, **smaller({field.name: getattr(self, field.name) for field in fields(self)}, layers))

    @abstractmethod
    def modules(self) -> Decoder.Config:
        """The tree of module configs, without any sharding."""

    @abstractmethod
    def declare(self, modules: Decoder.Config, plan: Plan) -> None:
        """Attach to every module config its sharding under `plan`."""

    @abstractmethod
    def tp_copies(self, tp: int) -> int:
        """How many neighbouring tp ranks share their key/value heads."""


def dims_of(
    spec: ModelSpec, *, dp_replicate: int, dp_shard: int, cp: int, tp: int, pp: int = 1, ep: int = 1
) -> ParallelismDims:
    """The degrees of a run of this model.

    Errors: `ConfigError` for numbers that no layout can make right, and for a degree below 1.
    """
    problems = spec.problems()
    if problems:
        raise ConfigError(problems)
    copies = spec.tp_copies(tp) if tp >= 1 else 1
    return ParallelismDims(dp_replicate=dp_replicate, dp_shard=dp_shard, cp=cp, tp=tp, pp=pp, tp_copy=copies, ep=ep)


def numbers_of(sizes: Mapping[str, Mapping[str, Any]], size: str, family: str) -> Mapping[str, Any]:
    """The numbers of a published size. family: the function that takes its name.

    Errors: `ConfigError` for a name that is none of `sizes`.
    """
    if size not in sizes:
        raise ConfigError(
            Problem(
                where=f"{family}({size!r})",
                what=f"no such size{nearest(str(size), tuple(sizes))}",
                fix=f"one of {', '.join(map(repr, sizes))}",
            )
        )
    return sizes[size]


def flag(name: str) -> str:
    """What sets a field of the model on the command line."""
    return f"--model.{name.replace('_', '-')}"

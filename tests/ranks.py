"""A module on simulated ranks: parallelized, with its first values, one thread a rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from meshwright.backends.base import Backend
from meshwright.backends.parallelize import States, materialise, parallelize
from meshwright.comm.grid import WORLD, ParallelismDims
from meshwright.comm.scope import View, current_mesh
from meshwright.comm.shapes import shape_view
from meshwright.comm.threads import run_ranks
from meshwright.core.module import Module
from meshwright.errors import ConfigError, Problem
from meshwright.train.assemble import local_backend
from meshwright.train.gradients import Gradients

T = TypeVar("T")


@dataclass(frozen=True)
class Member:
    """What one rank holds of a module."""

    rank: int
    module: Any
    backend: Backend
    states: States
    view: View

    def gradients(self) -> Gradients:
        return Gradients(self.module, self.backend, self.states, self.view["world"])


def on_meta(config: Module.Config) -> Any:
    with torch.device("meta"):
        return config.build()


def on_ranks(
    dims: ParallelismDims,
    config: Module.Config,
    program: Callable[[Member], T],
    *,
    seed: int = 0,
    before: Callable[[Any], object] = lambda module: None,
) -> list[T]:
    """`program` of each rank's member, in rank order. before: what is done to the module while it is on meta."""

    def rank_program(rank: int) -> T:
        view = current_mesh()
        assert view is not None
        backend = local_backend(dims, rank, view)
        module = on_meta(config)
        before(module)
        states = parallelize(module, backend)
        materialise(module, backend, states, torch.device("cpu"), seed)
        return program(Member(rank, module, backend, states, view))

    return run_ranks(dims, rank_program, {**dims.compute, **WORLD})


def alone(config: Module.Config, program: Callable[[Member], T], **kwargs: Any) -> T:
    """`program` on one device."""
    (result,) = on_ranks(ParallelismDims(), config, program, **kwargs)
    return result


def refused(
    config: Module.Config, dims: ParallelismDims, before: Callable[[Any], object] = lambda module: None
) -> tuple[Problem, ...]:
    """All problems that are found when the module is parallelized over `dims`; none if it is accepted."""
    module = on_meta(config)
    before(module)
    try:
        parallelize(module, local_backend(dims, 0, shape_view(dims, 0, dims.compute)))
    except ConfigError as error:
        return error.problems
    return ()

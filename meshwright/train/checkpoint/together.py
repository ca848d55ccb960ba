"""What fails on one rank fails on all of them alike: no rank goes on alone, none waits for one that is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from meshwright.errors import ConfigError, MeshwrightError, Problem, RunError

T = TypeVar("T")


def gather(value: T) -> list[T]:
    """The value of each rank, in rank order; of this process alone where it is no rank."""
    if not dist.is_initialized():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def this_rank() -> int:
    """0 where this process is no rank."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """The number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def agreed(work: Callable[[], T]) -> T:
    """What `work` returns on this rank, once it has succeeded on every rank. Called on all; `work` talks to none.

    Errors: where it fails on some rank, on all ranks alike, with the problems of all: a `ConfigError` where there is
    nothing else, else a `RunError`.
    """
    result: T | None = None
    problems: tuple[Problem, ...] = ()
    kind: type[MeshwrightError] = ConfigError
    try:
        result = work()
    except MeshwrightError as error:
        problems, kind = error.problems, type(error)
    except Exception as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        problems, kind = (Problem(where=f"rank {this_rank()}", what=what),), RunError
    failed = [(theirs, some) for some, theirs in gather((problems, kind)) if some]
    if failed:
        every = dict.fromkeys(problem for _, some in failed for problem in some)
        raise (ConfigError if {theirs for theirs, _ in failed} == {ConfigError} else RunError)(every)
    return result  # type: ignore[return-value]


def on_the_first(work: Callable[[], T]) -> T:
    """What `work` returns on rank 0, on every rank. Errors: those of `agreed`."""
    return gather(agreed(lambda: work() if this_rank() == 0 else None))[0]  # type: ignore[return-value]

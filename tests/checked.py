"""Small programs under the checker on simulated ranks: what they give, or how they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.threads import run_ranks


def accepted(dims: ParallelismDims, program: Callable[[int], Any]) -> list[Any]:
    """The program's results by rank, where the checker lets it pass."""

    def checked(rank: int) -> Any:
        with spmd.typecheck():
            return program(rank)

    return run_ranks(dims, checked)


def refused(dims: ParallelismDims, program: Callable[[int], Any]) -> str:
    """What the checker says of the program."""
    with pytest.raises(spmd.SpmdTypeError) as error:
        accepted(dims, program)
    return str(error.value)

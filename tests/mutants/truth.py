"""What a program really computes: values on simulated ranks against one device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from meshwright.comm.grid import ParallelismDims
from meshwright.comm.threads import run_ranks
from meshwright.errors import SpmdTypeError
from tests.denotation import denoted
from tests.mutants.program import Given, Program, Results

Run = Callable[[Given], Results]


class Truth(Enum):
    """What a mutant is, by its values."""

    EQUIVALENT = "equivalent"
    """it agrees with one device"""
    OTHER = "another program"
    """it agrees with what it says itself on one device, which is something else: no fault of sharding"""
    CHANGES = "changes"
    """a value, a gradient or a weight is another one, or ranks that must agree do not, or it ends in an error"""
    REFUSED = "refused"
    """it computes nothing: a run that nobody checks refuses it, since no step has these types"""


class _Own(threading.local):
    """Random numbers of one rank: ranks are threads here, and a process has one generator only."""

    def __init__(self) -> None:
        self.generator = torch.Generator()


_own: Final = _Own()


class _OwnSeed(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.dropout:
            return func(*args, **(kwargs or {}))
        (x,), p = args, (kwargs or {})["p"]
        kept = torch.rand(x.shape, generator=_own.generator, dtype=x.dtype) >= p
        return x * kept / (1 - p)


@contextmanager
def own_seeds() -> Iterator[None]:
    """`torch.manual_seed` seeds the generator of the rank that calls it."""
    with patch.object(torch, "manual_seed", lambda seed: _own.generator.manual_seed(int(seed))):
        yield


def on_ranks(program: Program, run: Run, dims: ParallelismDims) -> Mapping[str, Tensor]:
    """What the ranks' results denote under the layouts that the right program declares.

    Errors: whatever a rank raises; `AssertionError` where ranks differ that must agree.
    """

    def of(rank: int) -> Results:
        with _OwnSeed():
            return {name: x.detach() for name, x in program.on_this_rank(run).items()}

    with own_seeds():
        held = run_ranks(dims, of, program.view)
    return {
        name: denoted(layout, [each[name] for each in held], dims).double() for name, layout in program.outputs.items()
    }


def one_device(program: Program, run: Run) -> Mapping[str, Tensor]:
    """The results where every axis has one rank."""
    return on_ranks(program, run, ParallelismDims())


def truth(program: Program, mutant: Run, expected: Mapping[str, Tensor], own_meaning: bool) -> tuple[Truth, str]:
    """What the mutant is, and how that shows. own_meaning: it may be a right program of something else."""
    try:
        found = on_ranks(program, mutant, program.dims)
    except Exception as error:  # a program that ends in an error does not compute what the right one does
        return (Truth.REFUSED if isinstance(error, SpmdTypeError) else Truth.CHANGES), type(error).__name__
    differing = [name for name in expected if not close(found[name], expected[name])]
    if not differing:
        return Truth.EQUIVALENT, ""
    if own_meaning:
        try:
            own = one_device(program, mutant)
        except Exception:  # of no meaning on one device
            return Truth.CHANGES, ", ".join(differing)
        if all(close(found[name], own[name]) for name in own):
            return Truth.OTHER, ", ".join(differing)
    return Truth.CHANGES, ", ".join(differing)


def close(a: Tensor, b: Tensor) -> bool:
    """Alike but for rounding in double precision."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, atol=1e-9)

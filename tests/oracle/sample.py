"""Samples: ways to call an op, by which its rule is proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.oracle.held import values

F64 = torch.float64


@dataclass(frozen=True)
class Input:
    """An operand: its global shape and what its values are. wants: it may want a gradient."""

    shape: tuple[int, ...]
    make: Callable[[Tensor], Tensor]
    dtype: torch.dtype = F64
    wants: bool = True
    lists: bool = True

    def whole(self, seed: int, lists: int = 0) -> Tensor:
        """The global tensor; `lists` of them, one above the other, where it is V."""
        if lists:
            return torch.stack([self.whole(seed + 100 * (1 + entry)) for entry in range(lists)])
        return self.make(values(self.shape, self.dtype, seed))


def real(*shape: int, dtype: torch.dtype = F64, wants: bool = True) -> Input:
    """Any real numbers."""
    return Input(shape, lambda x: x, dtype, wants)


def positive(*shape: int, wants: bool = True) -> Input:
    """From 0.5 up."""
    return Input(shape, lambda x: x.abs() + 0.5, F64, wants)


def unit(*shape: int) -> Input:
    """Between 0 and 1."""
    return Input(shape, lambda x: x.sigmoid())


def chances(*shape: int) -> Input:
    """Along the last dim a distribution."""
    return Input(shape, lambda x: x.softmax(-1))


def cplx(*shape: int) -> Input:
    """Complex numbers."""
    return Input(shape, lambda x: x, torch.complex128)


def definite(*shape: int) -> Input:
    """Symmetric positive definite matrices."""
    return Input(shape, lambda x: x @ x.mT + shape[-1] * torch.eye(shape[-1], dtype=F64))


def places(below: int, *shape: int) -> Input:
    """Whole numbers from 0 to `below` - 1."""
    return Input(shape, lambda x: (x.abs() * 7 + torch.arange(x.numel()).view(x.shape)) % below, torch.int64, False)


def numbers(*shape: int) -> Input:
    """Whole numbers from -4 to 4."""
    return Input(shape, lambda x: x, torch.int64, False)


def mask(*shape: int) -> Input:
    """Yes or no."""
    return Input(shape, lambda x: x > 0, torch.bool, False)


def rare(*shape: int) -> Input:
    """Yes at few places."""
    return Input(shape, lambda x: torch.arange(x.numel()).view(shape) % 19 == 0, torch.bool, False)


def rising(*shape: int) -> Input:
    """Along the last dim from the smallest to the greatest."""
    return Input(shape, lambda x: x.sort(-1).values, F64, False)


def triangular(*shape: int) -> Input:
    """Lower triangular matrices that have an inverse."""
    return Input(shape, lambda x: x.tril() + 4 * torch.eye(shape[-1], dtype=F64))


def ends(groups: int, rows: int) -> Input:
    """Where each of so many groups of rows ends."""
    return Input(
        (groups,), lambda x: torch.arange(1, groups + 1, dtype=torch.int32) * (rows // groups), torch.int32, False
    )


@dataclass(frozen=True)
class Sample:
    """One way to call `op`. run: the call, on one tensor for each of `inputs`. mixed: one of them may be a list, V."""

    op: str
    run: Callable[..., Any]
    inputs: tuple[Input, ...]
    mixed: bool = True

    def __str__(self) -> str:
        shapes = " ".join("x".join(map(str, each.shape)) or "scalar" for each in self.inputs)
        return f"{self.op} {shapes}"


def sample(op: str, run: Callable[..., Any], *inputs: Input | tuple[int, ...], mixed: bool = True) -> Sample:
    """A sample; a shape alone stands for real numbers."""
    return Sample(op, run, tuple(x if isinstance(x, Input) else real(*x) for x in inputs), mixed)


def of_list(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, on a list of all operands."""
    return lambda *xs: call(list(xs))


def of(call: Callable[..., Any], change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """The call, on what `change` makes of the operand."""
    return lambda x: call(change(x))

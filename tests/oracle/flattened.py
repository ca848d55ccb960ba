"""Samples whose operands were flattened: of a dim of 12 positions that is made of 6 and 2, either may be sharded."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import Tensor

from tests.oracle.sample import Input, Sample

_LENGTH: Final = 12
_FACTORS: Final = (6, 2)

BY_LENGTH: Final = frozenset()
"""Samples of these name lengths on a rank: of a flattened dim they say no longer which factor is meant."""


def flattened(sample: Sample) -> Sample | None:
    """The sample on operands whose first dim of 12 positions is a product; None where no operand has such a dim."""
    if sample.op in BY_LENGTH:
        return None
    at = [each.shape.index(_LENGTH) if _LENGTH in each.shape else None for each in sample.inputs]
    if all(dim is None for dim in at):
        return None

    def run(*xs: Tensor) -> object:
        return sample.run(*(x if dim is None else x.flatten(dim, dim + 1) for x, dim in zip(xs, at, strict=True)))

    inputs = tuple(_split(each, dim) for each, dim in zip(sample.inputs, at, strict=True))
    return replace(sample, run=run, inputs=inputs)


def _split(given: Input, dim: int | None) -> Input:
    if dim is None:
        return given
    before = given.shape
    after = (*before[:dim], *_FACTORS, *before[dim + 1 :])
    return replace(given, shape=after, make=lambda x: given.make(x.reshape(before)).reshape(after))

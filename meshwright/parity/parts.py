"""The gradient in parts: what one device finds of each micro-batch, and of each data rank's tokens, alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from meshwright.comm.shapes import shape_view
from meshwright.parity.batch import rows_of
from meshwright.parity.shapes import Shapes
from meshwright.parity.step import alone
from meshwright.train.assemble import run_dims
from meshwright.train.config import TrainConfig
from meshwright.train.data import Batch
from meshwright.train.data.packing import IGNORE
from meshwright.train.step import own_part
from meshwright.types.axes import CP, DP


def of_micro_batches(recipe: TrainConfig, shapes: Shapes, name: str) -> list[Tensor]:
    """The gradient of `name` from each micro-batch, of the same divisor as the whole."""
    batches = shapes.batches
    return [
        _gradient(recipe, shapes, name, [batch if batch is own else _kept(batch, []) for batch in batches])
        for own in batches
    ]


def of_data_ranks(recipe: TrainConfig, small: TrainConfig, shapes: Shapes, name: str) -> list[Tensor]:
    """The gradient of `name` from the tokens of each rank of dp and cp, of the same divisor as the whole; one part
    where all have the same tokens. small: the run in the layout."""
    dims = run_dims(small)
    views = [shape_view(dims, rank) for rank in range(dims.world)]
    places = {(view[DP].index, view[CP].index): view for view in views}
    numbers = torch.arange(shapes.rows * shapes.length).view(shapes.rows, shapes.length)
    parts = []
    for view in places.values():
        own = own_part(rows_of(Batch(numbers, numbers, numbers, numbers), view[DP].index, view[DP].size), view[CP])
        tokens = own.tokens.flatten().tolist()
        parts.append(_gradient(recipe, shapes, name, [_kept(batch, tokens) for batch in shapes.batches]))
    return parts


def _gradient(recipe: TrainConfig, shapes: Shapes, name: str, batches: Sequence[Batch]) -> Tensor:
    """A step divides by the valid tokens that it has; the parts are to be divided by those of all."""
    count, whole = _valid(batches), _valid(shapes.batches)
    if count == 0:
        return torch.zeros(())
    return alone(recipe, shapes, batches).grads[name] * (count / whole)


def _valid(batches: Sequence[Batch]) -> int:
    return sum(int((batch.labels != IGNORE).sum()) for batch in batches)


def _kept(batch: Batch, tokens: Sequence[int]) -> Batch:
    """The batch with the labels of these tokens alone, counted row by row."""
    labels = torch.full_like(batch.labels, IGNORE)
    labels.view(-1)[tokens] = batch.labels.view(-1)[tokens]
    return replace(batch, labels=labels)

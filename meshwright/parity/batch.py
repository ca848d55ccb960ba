"""A batch on which wrong divisors show: rows with different numbers of valid tokens, two documents a row."""

from __future__ import annotations

import torch

from meshwright.train.data import Batch
from meshwright.train.data.packing import IGNORE


def unequal_batch(vocab: int, rows: int, length: int, seed: int = 0) -> Batch:
    """The last row has no valid token at all."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab, (rows, length), generator=generator)
    labels = torch.randint(vocab, (rows, length), generator=generator)
    for row in range(rows):
        labels[row, length - 3 * row :] = IGNORE
    labels[-1] = IGNORE
    cut = torch.arange(length).expand(rows, length) >= torch.randint(3, length - 3, (rows, 1), generator=generator)
    documents = cut.long()
    positions = torch.arange(length) - documents * (~cut).sum(-1, keepdim=True)
    return Batch(tokens=tokens, labels=labels, positions=positions, documents=documents)


def rows_of(batch: Batch, index: int, parts: int) -> Batch:
    """The rows of one of `parts` data ranks."""
    size = len(batch.tokens) // parts
    cut = slice(index * size, (index + 1) * size)
    return Batch(*(field[cut] for field in batch.fields))

"""Documents end to end -> rows of equal length that know where each document begins."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.train.data.store import Split

IGNORE = -100  # the label that torch's cross entropy leaves out


@dataclass(frozen=True, eq=False)
class Batch:
    """B rows of L tokens, all int64 [B, L].

    tokens:    the inputs; the end-of-text token on padding
    labels:    the next token of the same document; IGNORE after a document's last token and on padding
    positions: 0, 1, 2... from the beginning of each document, and of each row
    documents: number of the document within the row, from 0; padding is a document of its own
    ahead, ahead_labels: tokens and labels of the next place, as `look_ahead` makes them
    """

    tokens: Tensor
    labels: Tensor
    positions: Tensor
    documents: Tensor
    ahead: Tensor | None = None
    ahead_labels: Tensor | None = None

    @property
    def fields(self) -> tuple[Tensor, ...]:
        """Those that it has, in the order in which they are declared: `Batch(*batch.fields)` is the batch."""
        given = (self.tokens, self.labels, self.positions, self.documents, self.ahead, self.ahead_labels)
        return tuple(field for field in given if field is not None)


def look_ahead(batch: Batch) -> Batch:
    """The batch, which has whole rows, with the token after each and the one to predict after that. At the end of a
    document, or of a row, the token itself stands in, and nothing is predicted."""
    tokens, labels, documents = batch.tokens, batch.labels, batch.documents
    ahead, ahead_labels = tokens.clone(), torch.full_like(labels, IGNORE)
    goes_on = documents[:, 1:] == documents[:, :-1]
    ahead[:, :-1] = torch.where(goes_on, tokens[:, 1:], tokens[:, :-1])
    ahead_labels[:, :-1] = torch.where(goes_on, labels[:, 1:], IGNORE)
    return replace(batch, ahead=ahead, ahead_labels=ahead_labels)


def count_rows(split: Split, length: int) -> int:
    """Rows of `length` that the tokens of `split` fill; the last one may be filled in part."""
    return -(-len(split.tokens) // length)


def pack(split: Split, rows: NDArray[np.int64], *, length: int, padding: int) -> Batch:
    """The rows numbered `rows` [B] of `split`; a row beyond the last is padding throughout.

    Row r holds tokens r * length to (r + 1) * length of the documents laid end to end. A document that the end of a
    row cuts goes on in the next row as a new segment; its label across the cut is kept.
    """
    total, documents = len(split.tokens), split.documents
    first = rows[:, None] * length
    at = first + np.arange(length)
    # bounds[documents] == total, so padding is found as one more document that begins there
    document = np.searchsorted(split.bounds, at, side="right") - 1
    begin = split.bounds[document]
    last = at + 1 >= split.bounds[np.minimum(document + 1, documents)]
    return Batch(
        tokens=_int64(np.where(at < total, split.tokens[np.minimum(at, total - 1)], padding)),
        labels=_int64(np.where(last, IGNORE, split.tokens[np.minimum(at + 1, total - 1)].astype(np.int64))),
        positions=_int64(at - np.maximum(begin, first)),
        documents=_int64(document - document[:, :1]),
    )


def _int64(array: NDArray[np.integer]) -> Tensor:
    return torch.from_numpy(array.astype(np.int64, copy=False))

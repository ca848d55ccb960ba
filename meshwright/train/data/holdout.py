"""Which documents are held out for validation: decided by their contents, never by chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import DataError, Problem

Spans = NDArray[np.int64]  # [documents, 2]: first token and the one after the last


def hold_out(bounds: NDArray[np.int64], hashes: NDArray[np.uint64], share: float) -> tuple[Spans, Spans]:
    """Spans of the training and of the validation documents, each in the order of the text.

    bounds: [D + 1], document d is tokens bounds[d] to bounds[d + 1]; hashes: [D], of the documents' contents.
    The `share` of the documents with the smallest hashes is held out, so equal documents stay together; at least one
    document is on each side. Only a document that has something to predict, more than its end, is held out. If there
    is one such document only, its last `share` of tokens is. Errors: `DataError` if that is too short as well.
    """
    spans = np.stack([bounds[:-1], bounds[1:]], axis=1)
    if share == 0:
        return spans, spans[:0]
    worthy = np.flatnonzero(np.diff(bounds) > 1)
    if len(worthy) == 0:
        raise _too_short(int(bounds[-1]))
    if len(worthy) == 1:
        return _cut_one(spans, int(worthy[0]), share)
    count = min(max(round(share * len(worthy)), 1), len(worthy) - 1)
    held = np.zeros(len(spans), dtype=bool)
    held[worthy[np.argsort(hashes[worthy], kind="stable")[:count]]] = True
    return spans[~held], spans[held]


def _cut_one(spans: Spans, document: int, share: float) -> tuple[Spans, Spans]:
    start, end = (int(bound) for bound in spans[document])
    if end - start < 4:  # two tokens on each side: one to read and one to predict
        raise _too_short(end - start)
    cut = end - min(max(round(share * (end - start)), 2), end - start - 2)
    train = spans.copy()
    train[document, 1] = cut
    return train, np.array([[cut, end]])


def _too_short(tokens: int) -> DataError:
    return DataError(
        Problem(
            where="data.validation",
            what=f"nothing can be held out of the text, which has {tokens} tokens",
            fix="more text in data.path, or --data.validation 0",
        )
    )

"""Token files: the tokens of a split end to end, and where each document begins."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import DataError, Problem
from meshwright.train.data.tokenizer import token_dtype


@dataclass(frozen=True, eq=False)
class Split:
    """The documents of one split, end to end.

    tokens: [T], unsigned; bounds: int64 [D + 1], document d is tokens bounds[d] to bounds[d + 1], so bounds[D] is T.
    """

    tokens: NDArray[np.unsignedinteger]
    bounds: NDArray[np.int64]

    @property
    def documents(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1


def write_split(folder: Path, name: str, tokens: NDArray[np.unsignedinteger], spans: NDArray[np.int64]) -> str:
    """Writes the documents `spans` of `tokens` as the split `name` of `folder` and returns a digest of their tokens."""
    lengths = spans[:, 1] - spans[:, 0]
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    digest = hashlib.blake2b(bounds.tobytes(), digest_size=16)
    with open(_tokens_file(folder, name), "wb") as file:
        for start, end in _runs(spans):
            part = np.ascontiguousarray(tokens[start:end])
            digest.update(part.data)
            file.write(part.data)
    np.save(_bounds_file(folder, name), bounds)
    return digest.hexdigest()


def open_split(folder: Path, name: str, *, tokens: int, documents: int, vocab_size: int) -> Split:
    """The split `name` of `folder`, memory-mapped. Errors: `DataError` if its files are not what was written."""
    dtype = token_dtype(vocab_size)
    file = _tokens_file(folder, name)
    try:
        bounds = np.load(_bounds_file(folder, name), mmap_mode="r")
        size = file.stat().st_size
    except (OSError, ValueError) as error:
        raise damaged(folder, str(error)) from error
    if size != tokens * dtype.itemsize or bounds.shape != (documents + 1,) or bounds[-1] != tokens:
        raise damaged(folder, f"the {name} split is not the {tokens} tokens in {documents} documents it should be")
    # an empty file cannot be mapped
    return Split(np.memmap(file, dtype, mode="r") if tokens else np.empty(0, dtype), bounds)


def damaged(folder: Path, what: str) -> DataError:
    """`folder` is not a corpus that `prepare` finished, or not any more."""
    return DataError(
        Problem(
            where=str(folder),
            what=f"not a prepared corpus: {what}",
            fix=f"delete the folder {str(folder)!r}; preparing again writes it anew",
        )
    )


def _runs(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Spans that touch, merged: a few long writes instead of one a document."""
    if len(spans) == 0:
        return spans
    breaks = np.flatnonzero(spans[1:, 0] != spans[:-1, 1])
    starts = spans[np.concatenate([[0], breaks + 1]), 0]
    ends = spans[np.concatenate([breaks, [len(spans) - 1]]), 1]
    return np.stack([starts, ends], axis=1)


def _tokens_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.tokens"


def _bounds_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.bounds.npy"

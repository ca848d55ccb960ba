"""A small corpus of a test's own."""

from __future__ import annotations

from pathlib import Path

from meshwright.train.data import Corpus, DataConfig, prepare


def data_of(folder: Path, *, documents: int = 40, validation: float = 0.25) -> DataConfig:
    """Text files of different lengths in `folder`, to be prepared into a cache beside them."""
    texts = folder / "texts"
    texts.mkdir(parents=True)
    for number in range(documents):
        (texts / f"{number:02}.txt").write_text(f"story {number}\n" + f"line of {number}\n" * (number % 7))
    return DataConfig(path=(str(texts),), cache=str(folder / "cache"), vocab=300, validation=validation)


def corpus_of(folder: Path, *, length: int, documents: int = 40, validation: float = 0.25) -> Corpus:
    """The corpus of `data_of`, for rows of `length` tokens."""
    return prepare(data_of(folder, documents=documents, validation=validation), length=length)

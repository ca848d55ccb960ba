"""A prepared corpus: a folder with two splits of tokens and the tokenizer that made them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from meshwright.errors import ConfigError, Problem
from meshwright.train.data.store import Split, damaged, open_split
from meshwright.train.data.stream import BatchStream, OrderedPass, Share

TRAIN, VALIDATION = "train", "validation"
TOKENIZER_FILE, CORPUS_FILE = "tokenizer.json", "corpus.json"


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What there is to train on; small, to be pickled or, by `dataclasses.asdict`, written as JSON.

    folder:     where the token files are
    digest:     of all tokens and documents; equal if and only if the samples are
    vocab_size: every token id is below it
    eos_id:     the token that ends every document
    """

    folder: str
    digest: str
    vocab_size: int
    eos_id: int
    train_tokens: int
    train_documents: int
    validation_tokens: int
    validation_documents: int

    @property
    def tokenizer_path(self) -> str:
        """The tokenizer.json of this corpus."""
        return str(Path(self.folder) / TOKENIZER_FILE)

    def train(self, *, length: int, global_batch: int, rank: int = 0, ranks: int = 1, seed: int = 0) -> BatchStream:
        """This rank's endless stream of training batches, [global_batch / ranks, length] each.

        Errors: `ConfigError` for a batch that the ranks cannot share, a length below 1 or a negative seed.
        """
        share = Share(global_batch=global_batch, rank=rank, ranks=ranks)
        _demand_length(length)
        if seed < 0:
            raise ConfigError(Problem(where="data.seed", what=f"{seed} is negative", fix="a seed of 0 or more"))
        return BatchStream(
            self._split(TRAIN), corpus=self.digest, padding=self.eos_id, length=length, share=share, seed=seed
        )

    def validation(self, *, length: int, global_batch: int, rank: int = 0, ranks: int = 1) -> OrderedPass:
        """This rank's batches of one pass over the validation documents; none if nothing is held out.

        Errors: `ConfigError` for a batch that the ranks cannot share or a length below 1.
        """
        share = Share(global_batch=global_batch, rank=rank, ranks=ranks)
        _demand_length(length)
        return OrderedPass(self._split(VALIDATION), padding=self.eos_id, length=length, share=share)

    def _split(self, name: str) -> Split:
        counts = {
            TRAIN: (self.train_tokens, self.train_documents),
            VALIDATION: (self.validation_tokens, self.validation_documents),
        }
        tokens, documents = counts[name]
        return open_split(Path(self.folder), name, tokens=tokens, documents=documents, vocab_size=self.vocab_size)


def open_corpus(folder: str | Path) -> Corpus:
    """The corpus that `prepare` wrote to `folder`. Errors: `DataError` if it is none, or not complete."""
    folder = Path(folder)
    try:
        corpus = Corpus(folder=str(folder), **json.loads((folder / CORPUS_FILE).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise damaged(folder, str(error)) from error
    for name in (TRAIN, VALIDATION):
        corpus._split(name)
    return corpus


def write_corpus_file(corpus: Corpus) -> None:
    """Writes what `open_corpus` reads, without the folder, so that a corpus can be moved."""
    values = asdict(corpus)
    folder = Path(values.pop("folder"))
    (folder / CORPUS_FILE).write_text(json.dumps(values, indent=1) + "\n")


def _demand_length(length: int) -> None:
    if length < 1:
        raise ConfigError(Problem(where="length", what=f"rows of {length} tokens", fix="a length of at least 1"))

"""What text to train on."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import Problem

SMALLEST_VOCAB = 257  # every byte and the end-of-text token
LARGEST_VOCAB = 10_000_000  # more would name rarer words than any text has


@dataclass(kw_only=True)
class DataConfig:
    """Text, tokenizer, held-out share and order of the samples."""

    path: tuple[str, ...] = ()
    """Files or folders of .txt, .md, .py (one document a file), .jsonl and .parquet (one document a row), or a data
    set of Hugging Face as hf:owner/name[:split] (split: train). Folders are searched with all that is below them. If
    empty, the Python sources of this interpreter's standard library."""

    tokenizer: str | None = None
    """Path of a tokenizer.json. None: a byte-level BPE that is trained once on the text and kept in the cache."""

    vocab: int = 4096
    """Size of the tokenizer that is trained; little text may fill less of it. Unused where a tokenizer is given."""

    field: str = "text"
    """The key (.jsonl) or column (.parquet, Hugging Face) that holds the text."""

    validation: float = 0.02
    """Share of the documents that is held out, in [0, 1). A single document is held out by its last tokens."""

    seed: int = 0
    """Order of the samples."""

    cache: str | None = None
    """Folder for trained tokenizers and token files. None: $XDG_CACHE_HOME/meshwright or ~/.cache/meshwright. It knows
    a data set of Hugging Face by its name alone: a new version is read once the folder is gone."""


def check(config: DataConfig) -> list[Problem]:
    """What is wrong with the values themselves, before any file is looked at."""
    rules = (
        (
            config.tokenizer is None and not SMALLEST_VOCAB <= config.vocab <= LARGEST_VOCAB,
            Problem(
                where="data.vocab",
                what=f"{config.vocab} is too {'small' if config.vocab < SMALLEST_VOCAB else 'large'}",
                why="a byte-level tokenizer has a token for each of the 256 bytes and one for the end of a text",
                fix=f"a vocab of {SMALLEST_VOCAB} to {LARGEST_VOCAB}",
            ),
        ),
        (
            not 0 <= config.validation < 1,
            Problem(
                where="data.validation",
                what=f"{config.validation} is not in [0, 1)",
                why="it is the share of the documents that is held out",
                fix="0.02 holds out two documents in a hundred, 0 none",
            ),
        ),
        (
            config.seed < 0,
            Problem(where="data.seed", what=f"{config.seed} is negative", fix="a seed of 0 or more"),
        ),
    )
    return [problem for broken, problem in rules if broken]

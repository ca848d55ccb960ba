"""Text -> a corpus in the cache: found, tokenised and split once, before any rank starts."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from meshwright.errors import ConfigError, DataError, Problem
from meshwright.train.data.cache import digest_of, open_cache, publish, scratch
from meshwright.train.data.config import DataConfig, check
from meshwright.train.data.corpus import TOKENIZER_FILE, TRAIN, VALIDATION, Corpus, open_corpus, write_corpus_file
from meshwright.train.data.holdout import hold_out
from meshwright.train.data.readers import demand_packages
from meshwright.train.data.sources import Source, find_sources, read
from meshwright.train.data.store import write_split
from meshwright.train.data.tokenizer import (
    Vocabulary,
    load_vocabulary,
    read_tokenizer_file,
    sample,
    text_hash,
    token_dtype,
    train_tokenizer,
)

Progress = Callable[[str, float], None]

FORMAT = 1  # of the files in the cache; another number, and older ones are not met
TOKENIZER_TEXT = 64_000_000  # characters to learn a tokenizer from; more of them hardly change it


def prepare(config: DataConfig, *, length: int, progress: Progress | None = None) -> Corpus:
    """The corpus that `config` describes, made now or taken from the cache.

    length:   of the rows to train on; there must be text for at least one
    progress: hears the stage and the share of it that is done, 0 to 1; nothing if all comes from the cache

    To be called in one process before ranks start; they call `open_corpus(corpus.folder)`. Several processes that
    prepare the same corpus do no harm.
    Errors: `ConfigError` for values that make no sense, `DataError` for text that is missing, unreadable or too little.
    """
    problems = check(config)
    if length < 1:
        problems.append(Problem(where="length", what=f"rows of {length} tokens", fix="a length of at least 1"))
    if problems:
        raise ConfigError(problems)
    given = None if config.tokenizer is None else read_tokenizer_file(config.tokenizer)
    sources = find_sources(config.path)
    cache = open_cache(config.cache)
    text = (FORMAT, [source.identity for source in sources], config.field)
    tokenizer = ["bpe", config.vocab] if given is None else ["given", hashlib.sha256(given).hexdigest()]
    folder = cache / "corpora" / digest_of(*text, *tokenizer, config.validation)
    if not folder.exists():
        demand_packages((source.kind, source.name) for source in sources)
        progress = progress or (lambda stage, share: None)
        with scratch(cache) as work:
            if given is None:
                file = cache / "tokenizers" / f"{digest_of(*text, *tokenizer)}.json"
                if not file.exists():
                    publish(_learn(config, sources, work, partial(progress, "training the tokenizer")), file)
                given = file.read_bytes()
            made = work / "corpus"
            _write(config, sources, given, made, partial(progress, "tokenising"))
            publish(made, folder)
    corpus = open_corpus(folder)
    _demand_row(corpus, length)
    return corpus


def _learn(config: DataConfig, sources: tuple[Source, ...], work: Path, report: Callable[[float], None]) -> Path:
    report(0.0)
    size = sum(source.size for source in sources)
    texts = read(sources, config.field, report)
    share = TOKENIZER_TEXT / max(size, TOKENIZER_TEXT)
    file = work / TOKENIZER_FILE
    train_tokenizer(sample(texts, share=share, limit=TOKENIZER_TEXT), config.vocab).save(str(file))
    report(1.0)
    return file


def _write(
    config: DataConfig, sources: tuple[Source, ...], tokenizer: bytes, folder: Path, report: Callable[[float], None]
) -> None:
    report(0.0)
    vocabulary = load_vocabulary(tokenizer, name=config.tokenizer or TOKENIZER_FILE)
    folder.mkdir()
    spool = folder.with_name("spool")
    bounds, hashes = _tokenise(read(sources, config.field, report), vocabulary, spool)
    if len(hashes) == 0:
        raise DataError(
            Problem(
                where="data.path",
                what=f"no document in {len(sources)} source{'s' * (len(sources) > 1)}, {sources[0].name!r} first",
                fix="files that hold text",
            )
        )
    train, validation = hold_out(bounds, hashes, config.validation)
    tokens = np.memmap(spool, token_dtype(vocabulary.size), mode="r")
    digests = [write_split(folder, name, tokens, spans) for name, spans in ((TRAIN, train), (VALIDATION, validation))]
    (folder / TOKENIZER_FILE).write_bytes(tokenizer)
    write_corpus_file(
        Corpus(
            folder=str(folder),
            digest=digest_of(digests),
            vocab_size=vocabulary.size,
            eos_id=vocabulary.eos_id,
            train_tokens=int(np.diff(train).sum()),
            train_documents=len(train),
            validation_tokens=int(np.diff(validation).sum()),
            validation_documents=len(validation),
        )
    )
    report(1.0)


def _tokenise(
    texts: Iterable[str], vocabulary: Vocabulary, spool: Path
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.uint64]]]:
    """Writes all tokens to `spool`; bounds [D + 1] of the documents in it, and hashes [D] of their contents."""
    bounds, hashes = array("q", [0]), array("Q")

    def hashed() -> Iterator[str]:
        for text in texts:
            hashes.append(text_hash(text, purpose="hold out"))
            yield text

    written = 0
    with open(spool, "wb") as file:
        for ids, last in vocabulary.encode(hashed()):
            file.write(ids.data)
            written += len(ids)
            if last:
                bounds.append(written)
    return np.frombuffer(bounds, np.int64), np.frombuffer(hashes, np.uint64)


def _demand_row(corpus: Corpus, length: int) -> None:
    if corpus.train_tokens < length:
        raise DataError(
            Problem(
                where="data.path",
                what=f"{corpus.train_tokens} tokens to train on, less than one row of {length}",
                fix=f"more text, or rows of at most {corpus.train_tokens} tokens",
            )
        )

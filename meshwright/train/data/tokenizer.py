"""Text -> token ids: a byte-level BPE of our own, or any tokenizer.json."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from meshwright.errors import ConfigError, Problem, nearest_path

END_OF_TEXT = "<|end_of_text|>"
USUAL_ENDS = (END_OF_TEXT, "<|endoftext|>", "</s>", "<eos>", "<\uff5cend\u2581of\u2581sentence\uff5c>")
PIECE = 1 << 16  # characters that are tokenised at once
BATCH = 1 << 22  # characters that are tokenised in parallel

# The pre-tokenizer makes a lone line break between two visible characters a word of its own, so a text cut after it
# has the tokens of the whole text.
CUT = re.compile(r"(?<=\S)\n(?=\S)")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A tokenizer with what training needs to know of it: token ids are below `size`, `eos_id` ends each document."""

    tokenizer: Tokenizer
    eos_id: int
    size: int

    def encode(self, texts: Iterable[str]) -> Iterator[tuple[NDArray[np.unsignedinteger], bool]]:
        """The token ids of `texts` in order, in chunks; True with the chunk that ends a text and has its `eos_id`.

        Words of special tokens that stand in a text are text.
        """
        dtype = token_dtype(self.size)
        for batch in _batches(self._pieces(texts)):
            encodings = self.tokenizer.encode_batch_fast([piece for piece, _ in batch], add_special_tokens=False)
            for encoding, (_, last) in zip(encodings, batch, strict=True):
                yield np.array([*encoding.ids, self.eos_id] if last else encoding.ids, dtype), last

    def _pieces(self, texts: Iterable[str]) -> Iterator[tuple[str, bool]]:
        cut = pieces if _cuts_like_ours(self.tokenizer) else _whole
        for text in texts:
            *first, last = cut(text)
            yield from ((piece, False) for piece in first)
            yield last, True


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smaller of uint16 and uint32 that holds every token id."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def train_tokenizer(texts: Iterable[str], vocab: int) -> Tokenizer:
    """A byte-level BPE of at most `vocab` tokens learned from `texts`; the end-of-text token is one of them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _byte_level()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(texts), trainer)
    return tokenizer


def sample(texts: Iterable[str], *, share: float, limit: int) -> Iterator[str]:
    """About `share` of the pieces of `texts`, chosen by their contents, and no more than `limit` characters."""
    left = limit
    for text in texts:
        for piece in pieces(text):
            if text_hash(piece, purpose="sample") < share * 2**64:
                yield piece
                left -= len(piece)
                if left <= 0:
                    return


def pieces(text: str) -> Iterator[str]:
    """`text` cut where a cut changes no token; pieces are longer than `PIECE` only where there is no such place."""
    start = 0
    while match := CUT.search(text, start + PIECE):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def text_hash(text: str, *, purpose: str) -> int:
    """A number in [0, 2^64) that depends on the contents alone; independent for each `purpose`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, person=purpose.encode()).digest(), "big")


def read_tokenizer_file(path: str) -> bytes:
    """The bytes of a tokenizer.json. Errors: `ConfigError` if there is none."""
    file = Path(path).expanduser()
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(
            Problem(
                where="data.tokenizer",
                what=f"{path!r} cannot be read: {error.strerror}{'' if file.exists() else nearest_path(str(file))}",
                fix="the path of a tokenizer.json, or --data.tokenizer None: one is trained on the text",
            )
        ) from None


def load_vocabulary(data: bytes, *, name: str) -> Vocabulary:
    """The vocabulary in the bytes of a tokenizer.json; `name` is for messages.

    Errors: `ConfigError` if it does not parse or has none of the usual end-of-text tokens.
    """
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # the tokenizers package raises this very class
        raise ConfigError(
            Problem(
                where="data.tokenizer",
                what=f"{name!r} is no tokenizer.json: {error}",
                fix="a file that Tokenizer.save of the tokenizers package wrote",
            )
        ) from None
    # A file may ask for fixed lengths, which would drop text or add padding tokens without a word.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    ids = tokenizer.get_vocab(with_added_tokens=True)
    end = next((token for token in USUAL_ENDS if token in ids), None)
    if end is None:
        raise ConfigError(
            Problem(
                where="data.tokenizer",
                what=f"{name!r} has no end-of-text token; looked for {', '.join(USUAL_ENDS)}",
                why="it ends every document",
                fix=f"from tokenizers import Tokenizer; t = Tokenizer.from_file({name!r}); "
                f"t.add_special_tokens([{END_OF_TEXT!r}]); t.save({name!r})",
            )
        )
    return Vocabulary(tokenizer, eos_id=ids[end], size=max(ids.values()) + 1)


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _cuts_like_ours(tokenizer: Tokenizer) -> bool:
    ours = Tokenizer(models.BPE())
    ours.pre_tokenizer = _byte_level()
    theirs, own = (json.loads(each.to_str()) for each in (tokenizer, ours))
    return all(theirs[part] == own[part] for part in ("normalizer", "pre_tokenizer"))


def _whole(text: str) -> Iterator[str]:
    yield text


def _batches(pieces: Iterable[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    batch: list[tuple[str, bool]] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece[0]) + 1
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

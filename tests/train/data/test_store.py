"""Token files give back what was written, or say that they do not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import DataError
from meshwright.train.data.store import open_split, write_split

TOKENS = np.arange(20, dtype=np.uint16)


def spans(*pairs):
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@given(bounds=st.lists(st.integers(0, 20), max_size=8, unique=True).map(sorted), kept=st.sets(st.integers(0, 7)))
def test_the_chosen_documents_lie_end_to_end(folder, bounds, kept):
    documents = [pair for number, pair in enumerate(pairwise(bounds)) if number in kept]
    write_split(folder, "train", TOKENS, spans(*documents))
    total = sum(end - start for start, end in documents)
    split = open_split(folder, "train", tokens=total, documents=len(documents), vocab_size=100)
    assert split.documents == len(documents)
    read = [split.tokens[a:b].tolist() for a, b in pairwise(split.bounds)]
    assert read == [list(range(start, end)) for start, end in documents]


@pytest.mark.parametrize(("vocab", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_tokens_take_two_bytes_while_the_vocabulary_fits(tmp_path, vocab, dtype):
    tokens = np.array([vocab - 1, 0], dtype)
    write_split(tmp_path, "train", tokens, spans((0, 2)))
    split = open_split(tmp_path, "train", tokens=2, documents=1, vocab_size=vocab)
    assert split.tokens.dtype == dtype
    assert split.tokens.tolist() == [vocab - 1, 0]


def test_a_split_is_mapped_not_read(tmp_path):
    write_split(tmp_path, "train", TOKENS, spans((0, 20)))
    split = open_split(tmp_path, "train", tokens=20, documents=1, vocab_size=100)
    assert isinstance(split.tokens, np.memmap)
    assert isinstance(split.bounds, np.memmap)


def test_the_digest_tells_tokens_and_boundaries_apart(tmp_path):
    def digest(tokens, *pairs):
        return write_split(tmp_path, "train", tokens, spans(*pairs))

    assert digest(TOKENS, (0, 4), (4, 8)) == digest(TOKENS, (0, 4), (4, 8))
    assert digest(TOKENS, (0, 4), (4, 8)) != digest(TOKENS, (0, 5), (5, 8))
    assert digest(TOKENS, (0, 4), (4, 8)) != digest(TOKENS + np.uint16(1), (0, 4), (4, 8))


@pytest.mark.parametrize("file", ["train.tokens", "train.bounds.npy"])
def test_a_file_cut_short_is_found(tmp_path, file):
    write_split(tmp_path, "train", TOKENS, spans((0, 8), (8, 20)))
    data = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(data[:-8])
    with pytest.raises(DataError, match="not a prepared corpus") as error:
        open_split(tmp_path, "train", tokens=20, documents=2, vocab_size=100)
    assert f"delete the folder {str(tmp_path)!r}" in error.value.problems[0].fix

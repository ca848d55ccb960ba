"""A corpus is a folder: small to hand on, opened anew in every rank."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict

import pytest
import torch
from tokenizers import Tokenizer

from meshwright.errors import ConfigError, DataError
from meshwright.train.data import BatchStream, Corpus, open_corpus, prepare


@pytest.fixture
def corpus(config, stories):
    return prepare(config(stories, validation=0.25), length=16)


def test_it_is_the_same_opened_pickled_and_as_json(corpus):
    assert open_corpus(corpus.folder) == corpus
    assert pickle.loads(pickle.dumps(corpus)) == corpus
    assert Corpus(**json.loads(json.dumps(asdict(corpus)))) == corpus


def test_it_knows_its_sizes_and_its_tokenizer(corpus):
    assert (corpus.train_documents, corpus.validation_documents) == (30, 10)
    assert (corpus.vocab_size, corpus.eos_id) == (257, 256)
    tokenizer = Tokenizer.from_file(corpus.tokenizer_path)
    assert tokenizer.token_to_id("</s>") == 256


def test_its_batches_decode_to_the_text(corpus, stories):
    tokenizer = Tokenizer.from_file(corpus.tokenizer_path)
    batches = [*corpus.validation(length=16, global_batch=4)]
    tokens = torch.cat([batch.tokens.flatten() for batch in batches])[: corpus.validation_tokens]
    texts = tokenizer.decode(tokens.tolist(), skip_special_tokens=False).split("</s>")[:-1]
    assert len(texts) == 10
    assert set(texts) <= {path.read_text() for path in stories.iterdir()}


def test_ranks_share_its_batches(corpus):
    whole = next(corpus.train(length=16, global_batch=4, seed=7))
    parts = [next(corpus.train(length=16, global_batch=4, rank=rank, ranks=2, seed=7)) for rank in range(2)]
    assert torch.equal(torch.cat([part.tokens for part in parts]), whole.tokens)
    assert whole.tokens.shape == (4, 16)


def test_a_stream_of_another_corpus_is_refused(corpus, config, stories):
    other = prepare(config(stories, validation=0.5), length=16)
    order = {"length": 16, "global_batch": 4}
    state = corpus.train(**order).state_dict()
    with pytest.raises(ConfigError, match="the saved stream has corpus"):
        other.train(**order).load_state_dict(state)


def test_a_corpus_can_be_moved(corpus, tmp_path):
    moved = tmp_path / "elsewhere"
    (tmp_path / "cache" / "corpora" / corpus.folder.split("/")[-1]).rename(moved)
    again = open_corpus(moved)
    assert again.folder == str(moved)
    assert again.digest == corpus.digest
    assert isinstance(again.train(length=16, global_batch=4), BatchStream)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"global_batch": 5, "ranks": 2}, "5 rows cannot be shared by 2 ranks"),
        ({"global_batch": 4, "length": 0}, "rows of 0 tokens"),
    ],
)
@pytest.mark.parametrize("method", ["train", "validation"])
def test_what_cannot_be_is_refused_before_the_first_batch(corpus, method, values, message):
    with pytest.raises(ConfigError, match=message):
        getattr(corpus, method)(**({"length": 16} | values))


def test_a_negative_seed(corpus):
    with pytest.raises(ConfigError, match="-1 is negative"):
        corpus.train(length=16, global_batch=4, seed=-1)


def test_a_folder_that_is_no_corpus(tmp_path):
    with pytest.raises(DataError, match=r"not a prepared corpus: .*No such file"):
        open_corpus(tmp_path)


def test_a_corpus_that_lost_tokens(corpus, tmp_path):
    file = next((tmp_path / "cache" / "corpora").glob("*/train.tokens"))
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"the train split is not the .* tokens in 30 documents it should be"):
        open_corpus(corpus.folder)

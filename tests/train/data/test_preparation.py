"""From text to a corpus, once; then from the cache."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from meshwright.errors import DataError
from meshwright.train.data import prepare
from meshwright.train.data.packing import IGNORE


def texts(corpus, split):
    """All documents of a split, through its batches and its tokenizer."""
    total = {"train": corpus.train_tokens, "validation": corpus.validation_tokens}[split]
    # one row that holds everything keeps the order also in the training stream
    batch = next(iter(getattr(corpus, split)(length=total, global_batch=1)))
    decoded = Tokenizer.from_file(corpus.tokenizer_path).decode(batch.tokens[0].tolist(), skip_special_tokens=False)
    end = Tokenizer.from_file(corpus.tokenizer_path).id_to_token(corpus.eos_id)
    return decoded.split(end)


def sources(folder):
    return [path.read_text() for path in sorted(folder.iterdir())]


def test_every_document_comes_back_in_one_of_the_splits(config, stories):
    corpus = prepare(config(stories, validation=0.1), length=16)
    assert (corpus.train_documents, corpus.validation_documents) == (36, 4)
    train, validation = texts(corpus, "train")[:-1], texts(corpus, "validation")[:-1]
    assert sorted(train + validation) == sorted(sources(stories))
    assert train == [text for text in sources(stories) if text in train]


def test_without_a_tokenizer_one_is_trained(config, stories):
    corpus = prepare(config(stories, tokenizer=None, vocab=270), length=16)
    assert corpus.vocab_size == 270
    assert sorted(texts(corpus, "train")[:-1] + texts(corpus, "validation")[:-1]) == sorted(sources(stories))


def test_one_epoch_has_every_token_and_every_label_once(config, stories):
    corpus = prepare(config(stories, validation=0), length=16)
    stream = corpus.train(length=16, global_batch=1, seed=3)
    batches = [next(stream) for _ in range(-(-corpus.train_tokens // 16))]
    tokens = torch.cat([batch.tokens.flatten() for batch in batches])
    labels = torch.cat([batch.labels.flatten() for batch in batches])
    expected = [
        byte for text in sources(stories) for byte in Tokenizer.from_file(corpus.tokenizer_path).encode(text).ids
    ]
    padding = len(batches) * 16 - corpus.train_tokens
    assert sorted(tokens.tolist()) == sorted(expected + [256] * (40 + padding))
    # a label for every token but the first of each document: its bytes after the first, and its end
    heads = sorted(Tokenizer.from_file(corpus.tokenizer_path).encode(text).ids[0] for text in sources(stories))
    assert sorted(labels[labels != IGNORE].tolist() + heads) == sorted(expected + [256] * 40)


def test_what_is_held_out_does_not_depend_on_chance_or_order(config, tmp_path, stories):
    first = prepare(config(stories, validation=0.2), length=16)
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    for number, text in enumerate(reversed(sources(stories))):
        (renamed / f"{number:02}.txt").write_text(text)
    second = prepare(config(renamed, validation=0.2), length=16)
    assert sorted(texts(first, "validation")) == sorted(texts(second, "validation"))


def test_a_single_document_is_held_out_by_its_last_tokens(config, tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("0123456789" * 20)
    corpus = prepare(config(path, validation=0.1), length=16)
    assert texts(corpus, "train") == ["0123456789" * 18 + "0"]
    assert texts(corpus, "validation") == ["1234567890123456789", ""]


def test_all_kinds_together(config, tmp_path):
    import pyarrow
    import pyarrow.parquet

    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "a.txt").write_text("plain")
    (folder / "b.md").write_text("# marked")
    (folder / "c.jsonl").write_text('{"body": "line one"}\n{"body": "line two"}\n')
    pyarrow.parquet.write_table(pyarrow.table({"body": ["row one", "row two"]}), folder / "d.parquet")
    corpus = prepare(config(folder, validation=0, field="body"), length=4)
    assert texts(corpus, "train")[:-1] == ["plain", "# marked", "line one", "line two", "row one", "row two"]


def test_progress_tells_the_stages_and_ends_each_at_one(config, stories):
    heard = []
    prepare(config(stories, tokenizer=None, vocab=270), length=16, progress=lambda *stage: heard.append(stage))
    for stage in ("training the tokenizer", "tokenising"):
        shares = [share for name, share in heard if name == stage]
        assert shares[0] == 0
        assert shares[-1] == 1
        assert shares == sorted(shares)


# -- the cache


def overwrite_unnoticed(folder):
    """Other contents under the same names, sizes and times: whoever reads them now fails."""
    for path in folder.iterdir():
        state = path.stat()
        path.write_bytes(b"\0" * state.st_size)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("tokenizer", ["given", "trained"])
def test_the_second_time_no_text_is_read(config, stories, tokenizer):
    chosen = config(stories) if tokenizer == "given" else config(stories, tokenizer=None, vocab=270)
    first = prepare(chosen, length=16)
    overwrite_unnoticed(stories)
    heard = []
    assert prepare(chosen, length=32, progress=lambda *stage: heard.append(stage)) == first
    assert heard == []


def test_another_held_out_share_does_not_train_the_tokenizer_again(config, stories):
    prepare(config(stories, tokenizer=None, vocab=270), length=16)
    heard = []
    prepare(
        config(stories, tokenizer=None, vocab=270, validation=0.3),
        length=16,
        progress=lambda stage, share: heard.append(stage),
    )
    assert set(heard) == {"tokenising"}


@pytest.mark.parametrize("change", ["text", "new file", "field", "vocab", "validation", "tokenizer"])
def test_what_changes_the_tokens_changes_the_corpus(config, stories, tmp_path, byte_tokenizer, change):
    chosen = config(stories) if change == "tokenizer" else config(stories, tokenizer=None, vocab=270)
    first = prepare(chosen, length=16)
    if change == "text":
        (stories / "00.txt").write_text("another beginning")
    elif change == "new file":
        (stories / "99.txt").write_text("one more")
    elif change == "tokenizer":
        other = Tokenizer.from_file(str(byte_tokenizer))
        other.add_special_tokens(["<pad>"])
        other.save(str(tmp_path / "other.json"))
        chosen = replace(chosen, tokenizer=str(tmp_path / "other.json"))
    else:
        chosen = replace(chosen, **{change: {"field": "body", "vocab": 280, "validation": 0.5}[change]})
    assert prepare(chosen, length=16).folder != first.folder


def test_the_same_text_touched_is_the_same_order(config, stories):
    first = prepare(config(stories), length=16)
    for path in stories.iterdir():
        os.utime(path, ns=(1, 1))
    again = prepare(config(stories), length=16)
    assert again.folder != first.folder
    assert again.digest == first.digest


def test_a_data_set_of_the_hub_is_prepared_under_its_name(config, monkeypatch):
    from types import SimpleNamespace

    class Rows(list):
        column_names = ("text",)

        def select_columns(self, name):
            return self

    rows = Rows({"text": f"row {number}"} for number in range(20))
    hub = SimpleNamespace(load_dataset=lambda name, *, split: rows)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    corpus = prepare(config("hf:owner/name", validation=0), length=16)
    assert texts(corpus, "train")[:-1] == [f"row {number}" for number in range(20)]
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert prepare(config("hf:owner/name", validation=0), length=16) == corpus


def test_a_missing_package_is_told_before_anything_is_begun(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    said = []
    with pytest.raises(DataError, match="needs the package 'datasets'"):
        prepare(config("hf:owner/name"), length=16, progress=lambda stage, share: said.append(stage))
    assert said == []


def test_the_corpus_file_is_json(config, stories):
    corpus = prepare(config(stories), length=16)
    values = json.loads((Path(corpus.folder) / "corpus.json").read_text())
    assert values["digest"] == corpus.digest
    assert "folder" not in values

"""From text to a corpus, once; then from the cache. Whatever stops it, nothing half-written has a name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from meshwright.errors import ConfigError, DataError
from meshwright.train.data import DataConfig, prepare
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


# -- stopped in the middle


def script(config: DataConfig, body: str) -> list[str]:
    lines = [
        "import os, signal",
        "from meshwright.train.data import DataConfig, prepare",
        f"config = {config!r}",
        body,
    ]
    return [sys.executable, "-c", "\n".join(lines)]


def left_in(cache: Path) -> list[str]:
    return sorted(path.relative_to(cache).parts[0] for path in cache.rglob("*") if path.is_file())


@pytest.mark.parametrize("stage", ["training the tokenizer", "tokenising"])
@pytest.mark.parametrize("reached", [0.5, 1.0])
def test_a_killed_preparation_leaves_nothing_half_written(config, stories, tmp_path, stage, reached):
    chosen = config(stories, tokenizer=None, vocab=270)
    cache = tmp_path / "cache"
    kill = (
        "def progress(stage, share):\n"
        f"    if stage == {stage!r} and share >= {reached}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "prepare(config, length=16, progress=progress)"
    )
    killed = subprocess.run(script(chosen, kill), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert "corpora" not in left_in(cache)
    for file in (cache / "tokenizers").iterdir():
        Tokenizer.from_file(str(file))

    corpus = prepare(chosen, length=16)
    assert corpus.train_documents + corpus.validation_documents == 40
    assert list((cache / "unfinished").iterdir()) == []


def test_two_at_once_end_with_the_same_corpus(config, stories, tmp_path):
    chosen = config(stories, tokenizer=None, vocab=270)
    # each waits, in the middle of its work, until the other is in the middle of its own
    body = """
import pathlib, sys, time
def progress(stage, share):
    if (stage, share) == ("tokenising", 0.0):
        meeting = pathlib.Path(config.cache).with_name("meeting")
        meeting.mkdir(exist_ok=True)
        (meeting / str(os.getpid())).touch()
        while len(list(meeting.iterdir())) < 2: time.sleep(0.01)
print(prepare(config, length=16, progress=progress).digest)
"""
    both = [subprocess.Popen(script(chosen, body), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    digests = {process.communicate(timeout=120)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert digests == {prepare(chosen, length=16).digest}
    assert len(list((tmp_path / "cache" / "corpora").iterdir())) == 1
    assert list((tmp_path / "cache" / "unfinished").iterdir()) == []


def test_a_failed_preparation_leaves_nothing(config, stories, tmp_path):
    (stories / "bad.txt").write_bytes(b"\0")
    with pytest.raises(DataError):
        prepare(config(stories), length=16)
    assert left_in(tmp_path / "cache") == []


# -- what cannot be prepared


def refused(error, config, length=16):
    with pytest.raises(error) as caught:
        prepare(config, length=length)
    return caught.value.problems


def test_wrong_values_are_named_together_with_a_wrong_length(config, stories):
    problems = refused(ConfigError, config(stories, validation=1.5, seed=-1), length=0)
    assert [problem.where for problem in problems] == ["data.validation", "data.seed", "length"]


@pytest.mark.parametrize("tokenizer", ["given", "trained"])
def test_all_unreadable_files_are_in_one_error(config, stories, tokenizer):
    (stories / "bad.txt").write_bytes(b"ab\0")
    (stories / "worse.jsonl").write_text('{"text": "a"}\n{"txt": "a"}\n')
    chosen = config(stories) if tokenizer == "given" else config(stories, tokenizer=None, vocab=270)
    problems = refused(DataError, chosen)
    assert [(problem.where, problem.what) for problem in problems] == [
        (f"{stories}/bad.txt", "not text: byte 2 is 0x00"),
        (f"{stories}/worse.jsonl:2", "no field 'text', only txt, did you mean 'txt'?"),
    ]


def test_a_path_that_does_not_exist(config, stories):
    [problem] = refused(DataError, config(f"{stories}s"))
    assert problem.what == f"'{stories}s' does not exist, did you mean 'stories'?"


def test_a_tokenizer_that_does_not_exist(config, stories, tmp_path):
    [problem] = refused(ConfigError, config(stories, tokenizer=str(tmp_path / "none.json")))
    assert problem.where == "data.tokenizer"


def test_a_tokenizer_that_does_not_parse(config, stories, tmp_path):
    (tmp_path / "t.json").write_text("{")
    [problem] = refused(ConfigError, config(stories, tokenizer=str(tmp_path / "t.json")))
    assert problem.what.startswith(f"{str(tmp_path / 't.json')!r} is no tokenizer.json: ")


@pytest.mark.parametrize("tokenizer", ["given", "trained"])
def test_files_without_a_document(config, tmp_path, tokenizer):
    (tmp_path / "empty.jsonl").write_text("\n")
    path = tmp_path / "empty.jsonl"
    chosen = config(path) if tokenizer == "given" else config(path, tokenizer=None)
    [problem] = refused(DataError, chosen)
    assert problem.what == f"no document in 1 source, {str(path)!r} first"


def test_text_of_less_than_a_row(config, tmp_path):
    (tmp_path / "a.txt").write_text("0123456789")
    [problem] = refused(DataError, config(tmp_path / "a.txt", validation=0))
    assert problem.what == "11 tokens to train on, less than one row of 16"
    assert problem.fix == "more text, or rows of at most 11 tokens"
    assert prepare(config(tmp_path / "a.txt", validation=0), length=11).train_tokens == 11


def test_text_too_short_to_hold_anything_out(config, tmp_path):
    (tmp_path / "a.txt").write_text("ab")
    [problem] = refused(DataError, config(tmp_path / "a.txt"), length=1)
    assert problem.what == "nothing can be held out of the text, which has 3 tokens"
    assert prepare(config(tmp_path / "a.txt", validation=0), length=1).train_tokens == 3


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


def test_the_corpus_file_is_json(config, stories):
    corpus = prepare(config(stories), length=16)
    values = json.loads((Path(corpus.folder) / "corpus.json").read_text())
    assert values["digest"] == corpus.digest
    assert "folder" not in values

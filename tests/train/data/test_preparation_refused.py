"""What cannot be prepared is said in one error: where, what, and a fix."""

from __future__ import annotations

import pytest

from meshwright.errors import ConfigError, DataError
from meshwright.train.data import prepare


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
    assert problem.what == f"'{stories}s' does not exist, did you mean '{stories}'?"


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

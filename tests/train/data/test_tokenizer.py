"""Text becomes the same tokens whole or in pieces, and text again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from meshwright.errors import ConfigError
from meshwright.train.data import tokenizer as module
from meshwright.train.data.tokenizer import (
    END_OF_TEXT,
    USUAL_ENDS,
    load_vocabulary,
    pieces,
    read_tokenizer_file,
    sample,
    text_hash,
    train_tokenizer,
)

TEXTS = [f"def f{n}(x):\n    return x + {n}\n\n\nclass C{n}:\n    pass\n" for n in range(30)]


@pytest.fixture(scope="module")
def trained():
    return load_vocabulary(train_tokenizer(TEXTS, 300).to_str().encode(), name="trained")


def documents(vocabulary, texts):
    """Token ids of each text, without the end."""
    found, current = [], []
    for ids, last in vocabulary.encode(texts):
        current.extend(ids.tolist())
        if last:
            assert current.pop() == vocabulary.eos_id
            found.append(current)
            current = []
    assert not current
    return found


def test_a_trained_tokenizer_has_the_size_asked_for_and_the_end_of_text(trained):
    assert trained.size == 300
    assert trained.tokenizer.id_to_token(trained.eos_id) == END_OF_TEXT


def test_training_twice_gives_the_same_tokenizer():
    assert train_tokenizer(TEXTS, 300).to_str() == train_tokenizer(TEXTS, 300).to_str()


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
def test_any_text_comes_back_and_is_ended_once(trained, texts):
    found = documents(trained, texts)
    assert [trained.tokenizer.decode(ids, skip_special_tokens=False) for ids in found] == texts


def test_the_name_of_the_end_inside_a_text_is_text(trained):
    text = f"the token {END_OF_TEXT} ends a document"
    [ids] = documents(trained, [text])
    assert trained.eos_id not in ids
    assert trained.tokenizer.decode(ids) == text


@given(text=st.text(st.sampled_from("ab. \n\t\r'1\u00a0\u3000é文"), max_size=200), piece=st.integers(1, 20))
def test_cutting_a_text_into_pieces_changes_no_token(trained, text, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", piece)
        cut = list(pieces(text))
        [in_pieces] = documents(trained, [text])
    assert "".join(cut) == text
    assert in_pieces == trained.tokenizer.encode(text, add_special_tokens=False).ids


def test_long_text_is_cut(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 10)
    assert list(pieces("first line\nsecond line\n\nthird")) == ["first line\n", "second line\n\nthird"]


def test_a_foreign_tokenizer_gets_its_texts_whole(monkeypatch, trained):
    spaces = Tokenizer.from_str(trained.tokenizer.to_str())
    spaces.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=True)])
    foreign = load_vocabulary(spaces.to_str().encode(), name="foreign")
    monkeypatch.setattr(module, "PIECE", 4)
    text = "first\nsecond\nthird"
    assert documents(foreign, [text]) == [spaces.encode(text, add_special_tokens=False).ids]


def test_many_batches_keep_the_order(monkeypatch, trained):
    whole = documents(trained, TEXTS)
    monkeypatch.setattr(module, "BATCH", 40)
    assert documents(trained, TEXTS) == whole


def test_ids_are_as_small_as_the_vocabulary_allows(trained):
    [(ids, _)] = trained.encode(["a"])
    assert ids.dtype == np.uint16


def foreign_file(tmp_path, tokens, **settings):
    tokenizer = Tokenizer(models.WordLevel({"word": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(tokens)
    state = json.loads(tokenizer.to_str()) | settings
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(state))
    return path


@pytest.mark.parametrize("end", USUAL_ENDS)
def test_the_usual_ends_are_found(tmp_path, end):
    path = foreign_file(tmp_path, ["<pad>", end])
    vocabulary = load_vocabulary(path.read_bytes(), name=str(path))
    assert vocabulary.tokenizer.id_to_token(vocabulary.eos_id) == end
    assert vocabulary.size == 4


def test_an_id_beyond_a_gap_counts(tmp_path):
    path = foreign_file(tmp_path, ["</s>"])
    state = json.loads(path.read_text())
    state["model"]["vocab"]["far"] = 900
    vocabulary = load_vocabulary(json.dumps(state).encode(), name="gap")
    assert vocabulary.size == 901


def test_truncation_and_padding_that_a_file_asks_for_are_off(tmp_path):
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 1, "pad_type_id": 0, "pad_token": "[UNK]",
    }  # fmt: skip
    path = foreign_file(tmp_path, ["</s>"], truncation=truncation, padding=padding)
    vocabulary = load_vocabulary(path.read_bytes(), name=str(path))
    assert documents(vocabulary, ["word", "word word word word"]) == [[0], [0, 0, 0, 0]]


def test_without_an_end_the_fix_adds_one(tmp_path):
    path = foreign_file(tmp_path, ["<stop>"])
    with pytest.raises(ConfigError, match="has no end-of-text token") as error:
        load_vocabulary(path.read_bytes(), name=str(path))
    exec(error.value.problems[0].fix, {})
    vocabulary = load_vocabulary(path.read_bytes(), name=str(path))
    assert vocabulary.tokenizer.id_to_token(vocabulary.eos_id) == END_OF_TEXT


def test_a_file_that_is_no_tokenizer():
    with pytest.raises(ConfigError, match=r"'notes\.json' is no tokenizer\.json: "):
        load_vocabulary(b'{"a": 1}', name="notes.json")


def test_a_tokenizer_that_does_not_exist(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"cannot be read: No such file.*, did you mean '.*/tokenizer\.json'\?"):
        read_tokenizer_file(str(tmp_path / "tokeniser.json"))


def test_a_sample_keeps_about_its_share_and_its_limit():
    texts = [f"text number {n}" for n in range(2000)]
    everything = list(sample(texts, share=1.0, limit=10**9))
    half = list(sample(texts, share=0.5, limit=10**9))
    assert everything == texts
    assert 900 < len(half) < 1100
    assert list(sample(texts, share=1.0, limit=39)) == texts[:3]


def test_hashes_for_two_purposes_are_independent():
    assert text_hash("a", purpose="sample") == text_hash("a", purpose="sample")
    assert text_hash("a", purpose="sample") != text_hash("a", purpose="hold out")

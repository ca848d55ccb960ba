"""Each kind of file gives its documents, or one message with the place where it does not."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest

from meshwright.errors import DataError
from meshwright.train.data.readers import READERS


def read(path, kind=None, field="text"):
    return [text for text, _ in READERS[kind or path.suffix](str(path), field)]


def problem(path, kind=None, field="text"):
    with pytest.raises(DataError) as error:
        read(path, kind, field)
    [found] = error.value.problems
    return found


@pytest.mark.parametrize("kind", [".txt", ".md", ".py"])
def test_a_text_file_is_one_document(tmp_path, kind):
    path = tmp_path / f"a{kind}"
    path.write_bytes("line é\r\n\nline\n".encode())
    assert list(READERS[kind](str(path), "text")) == [("line é\r\n\nline\n", 1.0)]


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfword")
    assert read(path) == ["word"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"caf\xe9 au lait", "not text: byte 3 is 0xe9"),
        (b"\x7fELF\0\0\xff", "not text: byte 4 is 0x00"),
        (b"\xff\xfea\0", "not text: byte 0 is 0xff"),
    ],
)
def test_a_file_that_is_not_text_is_named_with_the_byte(tmp_path, data, message):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    found = problem(path)
    assert (found.where, found.what) == (str(path), message)


def test_a_source_of_the_standard_library_in_another_encoding_is_no_document(tmp_path):
    path = tmp_path / "old.py"
    path.write_bytes(b"# coding: latin-1\n# caf\xe9\n")
    assert read(path, "standard library") == []


def test_json_lines_are_one_document_each(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one\\ntwo"}\n\n{"text": "", "id": 3}\n')
    documents = list(READERS[".jsonl"](str(path), "text"))
    assert [text for text, _ in documents] == ["one\ntwo", ""]
    assert documents[-1][1] == 1.0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "b"', r"not JSON: "),
        ('["b"]', r"a JSON list, not an object with 'text'"),
        ('{"txt": "b", "id": 1}', r"no field 'text', only txt, id, did you mean 'txt'\?"),
        ("{}", r"no field 'text', only nothing"),
        ('{"text": 5}', r"field 'text' holds int, not a string"),
        ('{"text": null}', r"field 'text' holds NoneType, not a string"),
        ('{"text": "ab\\ud800"}', r"field 'text' has half a surrogate pair at character 2"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' + line + "\n")
    found = problem(path)
    assert found.where == f"{path}:2"
    assert found.what.startswith(message.replace("\\", ""))


def test_a_line_that_is_not_utf8_is_named_with_the_byte_in_the_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "\xe9"}\n')
    found = problem(path)
    assert (found.where, found.what) == (f"{path}:2", "not text: byte 24 is 0xe9")


def parquet(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_the_column_of_a_parquet_file(tmp_path):
    texts = [f"row {number}" for number in range(3000)]
    path = parquet(tmp_path / "a.parquet", body=texts, id=list(range(3000)))
    documents = list(READERS[".parquet"](str(path), "body"))
    assert [text for text, _ in documents] == texts
    assert documents[-1][1] == 1.0


def test_a_parquet_file_without_the_column(tmp_path):
    path = parquet(tmp_path / "a.parquet", content=["a"], texts=["b"])
    found = problem(path)
    assert (found.where, found.what) == (
        str(path),
        "no field 'text', only content, texts, did you mean 'texts'?",
    )


@pytest.mark.parametrize(("values", "kind"), [([1, 2], "int"), (["a", None], "NoneType")])
def test_a_parquet_value_that_is_no_string(tmp_path, values, kind):
    path = parquet(tmp_path / "a.parquet", text=values)
    found = problem(path)
    assert found.where == f"{path}, row {1 if kind == 'int' else 2}"
    assert found.what == f"field 'text' holds {kind}, not a string"


def test_a_file_that_is_not_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_text("no table")
    assert problem(path).what.startswith("not a Parquet file: ")


class Rows(list):
    """The part of `datasets.Dataset` that is used: column names, one column chosen, rows as dictionaries."""

    @property
    def column_names(self):
        return list(self[0])

    def select_columns(self, name):
        return Rows({name: row[name]} for row in self)


@pytest.fixture
def hub(monkeypatch):
    """A hub with the data set owner/tales; lists what was asked of it."""
    asked = []

    def load_dataset(name, *, split):
        asked.append((name, split))
        if name != "owner/tales":
            raise FileNotFoundError(f"Dataset '{name}' doesn't exist on the Hub")
        return Rows({"text": text, "id": number} for number, text in enumerate(["once", "upon"]))

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return asked


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("hf:owner/tales", "train"),
        ("hf:owner/tales:test", "test"),
        ("hf:owner/tales:train[:10%]", "train[:10%]"),
    ],
)
def test_a_data_set_of_the_hub(hub, name, split):
    assert list(READERS["hf"](name, "text")) == [("once", 0.5), ("upon", 1.0)]
    assert hub == [("owner/tales", split)]


def test_a_data_set_that_the_hub_does_not_have(hub):
    found = problem("hf:owner/tails", "hf")
    assert found.where == "hf:owner/tails"
    assert found.what == "cannot be loaded: Dataset 'owner/tails' doesn't exist on the Hub"


def test_a_data_set_without_the_column(hub):
    assert problem("hf:owner/tales", "hf", "txt").what == "no field 'txt', only text, id, did you mean 'text'?"


def test_a_data_set_whose_column_is_no_text(hub):
    found = problem("hf:owner/tales", "hf", "id")
    assert (found.where, found.what) == ("hf:owner/tales, row 1", "field 'id' holds int, not a string")


@pytest.mark.parametrize(
    ("kind", "package", "hidden"),
    [(".parquet", "pyarrow", "pyarrow"), (".parquet", "pyarrow", "pyarrow.parquet"), ("hf", "datasets", "datasets")],
)
def test_a_missing_package_is_named_with_the_extra_that_has_it(monkeypatch, tmp_path, kind, package, hidden):
    monkeypatch.setitem(sys.modules, hidden, None)
    found = problem("hf:owner/tales" if kind == "hf" else tmp_path / "a.parquet", kind)
    assert found.what == f"needs the package {package!r}"
    assert found.fix == "pip install -e '.[hf]' in a clone of meshwright, else pip install 'meshwright[hf]'"


def test_json_is_read_as_python_writes_it(tmp_path):
    texts = ["é文\u2028\U0001f600", '"quoted"\t', "\0 escaped"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert read(path) == texts

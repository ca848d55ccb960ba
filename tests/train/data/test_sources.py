"""Paths become sources in a fixed order; what leads nowhere is named, all of it at once."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from meshwright.errors import DataError
from meshwright.train.data.sources import MOST_PROBLEMS, find_sources, read


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    """Names are relative to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def files(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(f"text of {name}")


def found(*paths):
    return [source.name for source in find_sources(paths)]


def problems(*paths):
    with pytest.raises(DataError) as error:
        find_sources(paths)
    return error.value.problems


def test_a_folder_gives_what_is_below_it_sorted():
    files("d/b.txt", "d/a/z.md", "d/a.jsonl", "d/c.PY", "d/a/deep/x.parquet", "d/picture.png")
    assert found("d") == ["d/a/deep/x.parquet", "d/a/z.md", "d/a.jsonl", "d/b.txt", "d/c.PY"]


def test_paths_keep_their_order_and_a_file_comes_once():
    files("d/a.txt", "d/b.txt", "e.txt")
    assert found("e.txt", "d/b.txt", "d", "./e.txt") == ["e.txt", "d/b.txt", "d/a.txt"]


def test_a_data_set_of_the_hub_is_a_source():
    files("a.txt")
    [text, data_set] = find_sources(["a.txt", "hf:owner/name:train[:5%]"])
    assert (text.kind, data_set.kind, data_set.name) == (".txt", "hf", "hf:owner/name:train[:5%]")


def test_a_source_is_another_once_it_is_written_to():
    files("a.txt")
    [before] = find_sources(["a.txt"])
    [again] = find_sources(["a.txt"])
    os.utime("a.txt", ns=(1, 1))
    [touched] = find_sources(["a.txt"])
    assert before.identity == again.identity != touched.identity


def test_a_name_means_the_same_from_everywhere(monkeypatch):
    files("d/a.txt")
    here = [source.identity for source in find_sources(["d/a.txt"])]
    monkeypatch.chdir("d")
    there = [source.identity for source in find_sources(["a.txt"])]
    assert here == there


def test_a_path_that_does_not_exist_has_its_nearest_name():
    files("corpus/train.txt")
    [problem] = problems("corpus/trian.txt")
    assert (problem.where, problem.what) == (
        "data.path",
        "'corpus/trian.txt' does not exist, did you mean 'corpus/train.txt'?",
    )


def test_a_folder_that_does_not_exist_is_the_part_that_is_named():
    files("corpus/train.txt")
    [problem] = problems("corpsu/train.txt")
    assert problem.what == "'corpsu/train.txt' does not exist, did you mean 'corpus/train.txt'?"


def test_where_nothing_is_near_the_folder_is_named(tmp_path):
    [problem] = problems("train.txt")
    assert problem.what == "'train.txt' does not exist"
    assert problem.why == f"the folder {str(tmp_path)!r} has no 'train.txt'"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("empty", "the folder 'empty' holds no file"),
        ("pictures", "the folder 'pictures' holds only files of other kinds (.jpg, .png, no suffix)"),
        ("pictures/a.png", "'pictures/a.png' is of a kind that is not read (.png)"),
        ("pictures/README", "'pictures/README' is of a kind that is not read (no suffix)"),
        ("rows.json", "'rows.json' is of a kind that is not read (.json)"),
        ("", "an empty name"),
        ("hf:", "'hf:' names no data set"),
        ("hf:owner/name:", "'hf:owner/name:' names no data set"),
    ],
)
def test_a_path_with_nothing_to_read(path, message):
    files("pictures/a.png", "pictures/b.jpg", "pictures/README", "rows.json")
    Path("empty").mkdir()
    [problem] = problems(path)
    assert problem.what == message
    assert problem.fix


def test_all_wrong_paths_are_named_at_once():
    files("a.txt")
    assert [problem.what for problem in problems("x.csv", "a.txt", "hf:")] == [
        "'x.csv' does not exist",
        "'hf:' names no data set",
    ]


def test_texts_come_in_order_and_the_share_rises_to_one():
    files("a.txt", "b.txt", "c.txt")
    shares: list[float] = []
    texts = list(read(find_sources(["c.txt", "a.txt", "b.txt"]), "text", shares.append))
    assert texts == ["text of c.txt", "text of a.txt", "text of b.txt"]
    assert shares == pytest.approx([1 / 3, 2 / 3, 1])


def test_all_unreadable_files_are_named_after_the_readable_ones_were_read():
    files("a.txt", "c.txt")
    Path("b.txt").write_bytes(b"\0")
    Path("d.jsonl").write_text("{")
    texts = read(find_sources(["."]), "text", lambda share: None)
    assert [next(texts), next(texts)] == ["text of a.txt", "text of c.txt"]
    with pytest.raises(DataError) as error:
        next(texts)
    assert [problem.where for problem in error.value.problems] == ["./b.txt", "./d.jsonl:1"]
    assert str(error.value).startswith("2 problems\n")


def test_reading_stops_when_everything_is_unreadable():
    for number in range(MOST_PROBLEMS + 5):
        Path(f"{number:02}.txt").write_bytes(b"\0")
    with pytest.raises(DataError) as error:
        list(read(find_sources(["."]), "text", lambda share: None))
    assert len(error.value.problems) == MOST_PROBLEMS + 1
    assert error.value.problems[-1].what == f"reading stopped after {MOST_PROBLEMS} such sources"


def test_a_file_that_is_gone_by_the_time_it_is_read_is_named():
    files("a.txt", "b.txt")
    sources = find_sources(["a.txt", "b.txt"])
    Path("a.txt").unlink()
    with pytest.raises(DataError, match=r"a\.txt: cannot be read: No such file or directory"):
        list(read(sources, "text", lambda share: None))


def test_without_a_path_it_is_the_standard_library_without_tests_and_packages():
    root = Path(sysconfig.get_paths()["stdlib"])
    names = [Path(source.name).relative_to(root) for source in find_sources([])]
    assert names == sorted(names)
    assert {Path("argparse.py"), Path("json/decoder.py")} <= set(names)
    assert all(name.suffix == ".py" for name in names)
    parts = {part for name in names for part in name.parts}
    assert not parts & {"site-packages", "test", "tests", "idle_test", "__pycache__"}


def test_an_interpreter_without_its_sources(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    [problem] = problems()
    assert problem.what == f"empty, and this interpreter has no Python sources in {str(tmp_path)!r}"

"""The folder of checkpoints: what has the name of one is one."""

from __future__ import annotations

import pytest

from meshwright.errors import ConfigError, RunError
from meshwright.train.checkpoint import folder as folders
from meshwright.train.checkpoint.marker import MARKER, Marker, Progress, read_marker


def marker(step, **values):
    return Marker(progress=Progress(step=step), stream={}, recipe={}, ranks="one rank", world=1, **values)


def saved(folder, step):
    partial = folders.begin(folder, step)
    (partial / "data").write_bytes(b"x" * step)
    whole = marker(step, files=folders.digests([partial / "data"]))
    return folders.publish(partial, whole), whole


def test_what_is_published_is_read_back(tmp_path):
    path, written = saved(tmp_path, 7)
    assert path == tmp_path / "step-7"
    assert read_marker(path) == written
    assert written.bytes == 7


def test_they_are_in_the_order_of_their_steps(tmp_path):
    for step in (100, 9, 20):
        saved(tmp_path, step)
    folders.begin(tmp_path, 30)
    (tmp_path / "notes").mkdir()
    (tmp_path / "step-9-copy").mkdir()
    assert [path.name for path in folders.checkpoints_in(tmp_path)] == ["step-9", "step-20", "step-100"]
    assert folders.checkpoints_in(tmp_path / "nowhere") == []


def test_a_save_begins_with_nothing_of_those_that_were_not_finished(tmp_path):
    (folders.begin(tmp_path, 3) / "data").write_text("")
    whole, _ = saved(tmp_path, 2)
    partial = folders.begin(tmp_path, 3)
    assert list(partial.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-3.partial"]
    assert (whole / MARKER).is_file()


@pytest.mark.parametrize(("keep", "left"), [(1, [30]), (2, [20, 30]), (3, [10, 20, 30]), (9, [10, 20, 30])])
def test_the_newest_are_kept(tmp_path, keep, left):
    for step in (10, 20, 30):
        saved(tmp_path, step)
    folders.prune(tmp_path, keep)
    assert [folders.step_of(path) for path in folders.checkpoints_in(tmp_path)] == left
    assert len(list(tmp_path.iterdir())) == len(left)


def test_one_that_cannot_be_removed_is_told(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    saved(tmp_path, 2)

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folders.shutil, "rmtree", refuse)
    with pytest.raises(RunError, match="step-1: an old checkpoint cannot be removed: Permission denied"):
        folders.prune(tmp_path, 1)


def test_a_name_that_is_taken_is_not_overwritten(tmp_path):
    path, written = saved(tmp_path, 4)
    with pytest.raises(OSError, match="not empty"):
        saved(tmp_path, 4)
    assert read_marker(path) == written


class TestMake:
    def test_it_makes_the_folder(self, tmp_path):
        folders.make(tmp_path / "a" / "b", after=0)
        assert (tmp_path / "a" / "b").is_dir()

    @pytest.mark.parametrize("within", ["", "deeper"])
    def test_a_file_is_no_folder(self, tmp_path, within):
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match=r"checkpoint\.folder: nothing can be written to .*file.*: (Not a|File)"):
            folders.make(tmp_path / "file" / within, after=0)

    def test_a_folder_that_may_not_be_written(self, tmp_path, monkeypatch):
        monkeypatch.setattr(folders.os, "access", lambda path, mode: False)  # whoever runs the tests may write anywhere
        with pytest.raises(ConfigError, match="Permission denied"):
            folders.make(tmp_path, after=0)

    def test_checkpoints_of_another_run_are_in_the_way(self, tmp_path):
        own, other = tmp_path / "own", tmp_path / "other"
        for folder in (own, other):
            folder.mkdir()
            saved(folder, 5)
        folders.make(own, after=5, resumed=own / "step-5")
        said = r"holds step-5, and this run goes on after step 4 of .*\n.*\n  fix: --resume "
        with pytest.raises(ConfigError, match=said):
            folders.make(own, after=4, resumed=own / "step-5")
        for after, resumed in ((0, None), (5, own / "step-5"), (9, own / "step-5")):
            with pytest.raises(ConfigError, match=r"other holds step-5"):
                folders.make(other, after=after, resumed=resumed)


class TestMarker:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "cannot be understood"),
            ("[]", "cannot be understood"),
            ("{}", "cannot be understood"),
            ('{"version": 1}', "cannot be understood"),
            ('{"version": 99}', "of another version"),
            (
                '{"version": 1, "progress": {"step": 1}, "stream": {}, "recipe": {}, "ranks": "", "world": 1,'
                '"files": {"data": {"bytes": 3, "sha256": ""}}}',
                "data has 5 bytes, not 3",
            ),
        ],
    )
    def test_one_that_says_nothing_right(self, tmp_path, text, said):
        path, _ = saved(tmp_path, 5)
        (path / MARKER).write_text(text)
        with pytest.raises(ConfigError, match=said):
            read_marker(path)

    def test_one_that_is_gone(self, tmp_path):
        path, _ = saved(tmp_path, 5)
        (path / MARKER).unlink()
        with pytest.raises(ConfigError, match=rf"step-5: no whole checkpoint: {MARKER} is missing"):
            read_marker(path)

    def test_one_that_cannot_be_read(self, tmp_path):
        path, _ = saved(tmp_path, 5)
        (path / MARKER).unlink()
        (path / MARKER).mkdir()
        with pytest.raises(ConfigError, match="it cannot be read: Is a directory"):
            read_marker(path)

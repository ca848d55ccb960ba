"""Only finished things have a name in the cache."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.errors import ConfigError
from meshwright.train.data.cache import digest_of, open_cache, publish, scratch


def test_the_folder_that_is_named_is_used(tmp_path):
    assert open_cache(str(tmp_path / "here")) == tmp_path / "here"


def test_without_a_name_it_is_below_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert open_cache(None) == tmp_path / "xdg" / "meshwright"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_cache(None) == tmp_path / ".cache" / "meshwright"
    assert open_cache("~/mine") == tmp_path / "mine"


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written: Not a directory") as error:
        open_cache(str(tmp_path / "file" / "cache"))
    assert error.value.problems[0].where == "data.cache"


def test_a_cache_that_takes_no_more_folders(tmp_path):
    cache = open_cache(str(tmp_path))
    (cache / "unfinished").rmdir()
    (cache / "unfinished").write_text("")
    with pytest.raises(ConfigError, match="cannot be written: Not a directory"), scratch(cache):
        pass


def test_unfinished_work_is_gone_afterwards_also_after_an_error(tmp_path):
    cache = open_cache(str(tmp_path))

    def work():
        with scratch(cache) as folder:
            (folder / "half").write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert list((cache / "unfinished").iterdir()) == []


def test_what_the_dead_left_is_swept_and_what_the_living_do_is_not(tmp_path):
    cache = open_cache(str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = cache / "unfinished" / f"{socket.gethostname()}.{dead.pid}.abc"
    living = cache / "unfinished" / f"{socket.gethostname()}.{os.getppid()}.abc"
    elsewhere = cache / "unfinished" / f"another-host.{dead.pid}.abc"
    for folder in (left, living, elsewhere):
        folder.mkdir()
    with scratch(cache):
        assert not left.exists()
        assert living.exists()
        assert elsewhere.exists()


def make(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "file").write_text(text)
    return folder


def test_the_first_to_finish_a_folder_stays(tmp_path):
    publish(make(tmp_path / "one", "first"), tmp_path / "place")
    publish(make(tmp_path / "two", "second"), tmp_path / "place")
    assert (tmp_path / "place" / "file").read_text() == "first"


def test_a_failure_to_publish_is_not_hidden(tmp_path):
    with pytest.raises(FileNotFoundError):
        publish(make(tmp_path / "one", "first"), tmp_path / "nowhere" / "place")


def test_digests_tell_values_apart():
    assert digest_of("a", 1, [2]) == digest_of("a", 1, [2])
    assert len({digest_of("a", 1), digest_of("a", "1"), digest_of("a1"), digest_of(["a"], 1)}) == 4

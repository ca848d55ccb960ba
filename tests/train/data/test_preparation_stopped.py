"""Whatever stops a preparation, nothing half-written has a name; two at once do no harm."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from meshwright.errors import DataError
from meshwright.train.data import DataConfig, prepare


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

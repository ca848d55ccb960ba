from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from meshwright.train.data import DataConfig
from meshwright.train.data.store import Split

MakeSplit = Callable[[Sequence[int]], Split]


@pytest.fixture(scope="session")
def split_of() -> MakeSplit:
    """Documents of the given lengths whose tokens are 0, 1, 2...: each token says where it comes from."""

    def make(lengths: Sequence[int]) -> Split:
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Split(np.arange(bounds[-1], dtype=np.uint32), bounds)

    return make


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json with a token for each byte and </s>, number 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def config(tmp_path: Path, byte_tokenizer: Path) -> Callable[..., DataConfig]:
    """A configuration with the byte tokenizer and a cache of the test's own."""

    def make(*paths: Path | str, **values: object) -> DataConfig:
        defaults = {"tokenizer": str(byte_tokenizer), "cache": str(tmp_path / "cache")}
        return DataConfig(path=tuple(map(str, paths)), **(defaults | values))  # type: ignore[arg-type]

    return make


@pytest.fixture
def stories(tmp_path: Path) -> Path:
    """A folder of forty small text files."""
    folder = tmp_path / "stories"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}.txt").write_text(f"story {number}\n" + f"line of {number}\n" * (number % 7))
    return folder

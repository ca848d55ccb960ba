"""A folder in which only finished things have a name."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from meshwright.errors import ConfigError, Problem

UNFINISHED = "unfinished"


def open_cache(folder: str | None) -> Path:
    """The cache folder, made if need be. Errors: `ConfigError` if it cannot be."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    cache = Path(folder or os.path.join(base, "meshwright")).expanduser()
    try:
        for name in (UNFINISHED, "tokenizers", "corpora"):
            (cache / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(cache, error) from error
    return cache


def digest_of(*values: object) -> str:
    """A name for what is made from `values`, which are strings, numbers and sequences of them."""
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()


@contextmanager
def scratch(cache: Path) -> Iterator[Path]:
    """A folder beside the finished things, gone afterwards; takes along those that killed processes left behind.

    Errors: `ConfigError` if the cache cannot be written.
    """
    host = socket.gethostname()
    for left in (cache / UNFINISHED).glob(f"{host}.*"):
        if not _runs(int(left.name.removeprefix(f"{host}.").split(".")[0])):
            shutil.rmtree(left, ignore_errors=True)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{host}.{os.getpid()}.", dir=cache / UNFINISHED))
    except OSError as error:
        raise _not_writable(cache, error) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(made: Path, place: Path) -> None:
    """Gives what was made in a scratch folder its name, in one step; if another process was first, its result stays."""
    try:
        os.replace(made, place)
    except OSError:
        if not place.exists():
            raise


def _not_writable(cache: Path, error: OSError) -> ConfigError:
    return ConfigError(
        Problem(
            where="data.cache",
            what=f"the folder {str(cache)!r} cannot be written: {error.strerror}",
            fix="--data.cache with a folder that can be written",
        )
    )


def _runs(process: int) -> bool:
    with suppress(PermissionError):  # it runs, and is another user's
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
    return True

"""Where the documents come from: a list of files and data sets, and their texts one after the other."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import DataError, Problem, nearest_path
from meshwright.train.data.readers import FILE_KINDS, HUB, READERS, STANDARD_LIBRARY

LEFT_OUT_OF_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
MOST_PROBLEMS = 20  # beyond them reading on would only delay the message


@dataclass(frozen=True)
class Source:
    """A file or a data set. `size` (bytes) and `modified` (ns) stand for its contents; 0 where it is not a file."""

    kind: str
    name: str
    size: int = 0
    modified: int = 0

    @property
    def identity(self) -> tuple[str, str, int, int]:
        """Equal as long as the source is the same and was not written to."""
        name = self.name if self.kind == HUB else os.path.abspath(self.name)
        return (self.kind, name, self.size, self.modified)


def find_sources(paths: Sequence[str]) -> tuple[Source, ...]:
    """The sources that `paths` name, in their order; below a folder sorted by name; each file once.

    No path at all: the standard library. Errors: `DataError` with one problem for each path that leads nowhere.
    """
    if not paths:
        return standard_library()
    found: dict[str, Source] = {}
    problems: list[Problem] = []
    for path in paths:
        try:
            sources = _expand(path)
        except DataError as error:
            problems.extend(error.problems)
            continue
        for source in sources:
            found.setdefault(source.name if source.kind == HUB else os.path.realpath(source.name), source)
    if problems:
        raise DataError(problems)
    return tuple(found.values())


def standard_library() -> tuple[Source, ...]:
    """The Python sources of this interpreter's standard library, without its tests and what was installed into it."""
    root = sysconfig.get_paths()["stdlib"]
    files = _files_below(root, without=LEFT_OUT_OF_LIBRARY)
    sources = tuple(_file(file, kind=STANDARD_LIBRARY) for file in files if file.endswith(".py"))
    if not sources:
        raise DataError(
            Problem(
                where="data.path",
                what=f"empty, and this interpreter has no Python sources in {root!r}",
                fix="--data.path with text of your own",
            )
        )
    return sources


def read(sources: Sequence[Source], field: str, report: Callable[[float], None]) -> Iterator[str]:
    """The documents of `sources` in order; `report` hears the share that is read, about a hundred times.

    Errors: `DataError` after the last document, with a problem for every source that could not be read to its end.
    """
    total = sum(max(source.size, 1) for source in sources)
    problems: list[Problem] = []
    done, reported = 0, 0.0
    for source in sources:
        size = max(source.size, 1)
        for text, part in _attempt(source, field, problems):
            yield text
            share = (done + part * size) / total
            if share - reported >= 0.01:
                reported = share
                report(share)
        done += size
        if len(problems) >= MOST_PROBLEMS:
            problems.append(Problem(where="data.path", what=f"reading stopped after {MOST_PROBLEMS} such sources"))
            break
    if problems:
        raise DataError(problems)


def _attempt(source: Source, field: str, problems: list[Problem]) -> Iterator[tuple[str, float]]:
    try:
        yield from READERS[source.kind](source.name, field)
    except DataError as error:
        problems.extend(error.problems)
    except OSError as error:
        problems.append(Problem(where=source.name, what=f"cannot be read: {error.strerror or error}"))


def _expand(path: str) -> list[Source]:
    if path.startswith(f"{HUB}:"):
        return [_hub(path)]
    name = os.path.expanduser(path)
    if os.path.isdir(name):
        return _folder(name)
    if not os.path.exists(name):
        raise DataError(_absent(name))
    return [_file(name, kind=_kind(name))]


def _hub(path: str) -> Source:
    _, dataset, *split = path.split(":", 2)
    if not dataset or "" in split:
        raise DataError(
            Problem(where="data.path", what=f"{path!r} names no data set", fix="hf:owner/name or hf:owner/name:split")
        )
    return Source(HUB, path)


def _folder(name: str) -> list[Source]:
    files = _files_below(name)
    readable = [file for file in files if _suffix(file) in FILE_KINDS]
    if not readable:
        others = ", ".join(sorted({_suffix(file) or "no suffix" for file in files}))
        raise DataError(
            Problem(
                where="data.path",
                what=f"the folder {name!r} holds {f'only files of other kinds ({others})' if files else 'no file'}",
                fix=f"a folder with at least one of {', '.join(FILE_KINDS)}",
            )
        )
    return [_file(file, kind=_suffix(file)) for file in readable]


def _files_below(root: str, without: frozenset[str] = frozenset()) -> list[str]:
    files: list[str] = []
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in without]
        files.extend(os.path.join(folder, name) for name in names)
    return sorted(files, key=lambda file: Path(file).parts)


def _file(name: str, *, kind: str) -> Source:
    """Errors: `DataError` for a link that leads nowhere, and for what cannot be looked at."""
    try:
        state = os.stat(name)
    except OSError as error:
        what = f"a link to {os.readlink(name)!r}, which is not there" if os.path.islink(name) else error.strerror
        raise DataError(
            Problem(where=name, what=what or str(error), fix="remove it, or mend what it leads to")
        ) from error
    return Source(kind, name, state.st_size, state.st_mtime_ns)


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _kind(name: str) -> str:
    kind = _suffix(name)
    if kind not in FILE_KINDS:
        raise DataError(
            Problem(
                where="data.path",
                what=f"{name!r} is of a kind that is not read ({kind or 'no suffix'})",
                fix=f"one of {', '.join(FILE_KINDS)}",
            )
        )
    return kind


def _absent(name: str) -> Problem:
    if not name:
        return Problem(where="data.path", what="an empty name", fix="the name of a file or folder")
    if os.path.islink(name):
        return Problem(
            where="data.path",
            what=f"{name!r} is a link to {os.readlink(name)!r}, which is not there",
            fix="an existing file or folder",
        )
    missing = Path(os.path.abspath(name))
    while not missing.parent.exists():
        missing = missing.parent
    near = nearest_path(name)
    return Problem(
        where="data.path",
        what=f"{name!r} does not exist{near}",
        why="" if near else f"the folder {str(missing.parent)!r} has no {missing.name!r}",
        fix="an existing file or folder; a Hugging Face data set is written hf:owner/name",
    )

"""One reader for each kind of source: its documents, and how far in the source each of them ends (0 to 1)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from meshwright.errors import DataError, Problem, install, nearest

Reader = Callable[[str, str], Iterator[tuple[str, float]]]  # (name, field) -> (text, share of the source read)

STANDARD_LIBRARY = "standard library"
HUB = "hf"
_PACKAGES = {".parquet": ("pyarrow", "pyarrow.parquet"), HUB: ("datasets",)}


def decode(data: bytes, *, name: str, offset: int = 0) -> str:
    """UTF-8 text without its byte order mark; `offset` is where `data` begins in the file `name`.

    Errors: `DataError` naming the first byte that is NUL or not UTF-8.
    """
    wrong = data.find(0)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = error.start if wrong < 0 else min(error.start, wrong)
    if wrong < 0:
        return text.removeprefix("\ufeff")
    raise DataError(
        Problem(
            where=name,
            what=f"not text: byte {offset + wrong} is {data[wrong]:#04x}",
            why="text is read as UTF-8, in which that byte cannot stand there" if data[wrong] else "text holds no NUL",
            fix="convert the file (iconv -f ITS-ENCODING -t utf-8) or leave it out of --data.path",
        )
    )


def missing_field(where: str, field: str, names: Sequence[str]) -> DataError:
    """`field` is none of the `names` that the row or table `where` has."""
    return DataError(
        Problem(
            where=where,
            what=f"no field {field!r}, only {', '.join(names) or 'nothing'}{nearest(field, names)}",
            fix="--data.field with the one that holds the text",
        )
    )


def not_a_string(where: str, field: str, value: object) -> DataError:
    """The field is there, its value is no text."""
    return DataError(
        Problem(
            where=where,
            what=f"field {field!r} holds {type(value).__name__}, not a string",
            fix="--data.field with another field, or take the row out",
        )
    )


def absent_package(where: str, package: str) -> DataError:
    """`where` needs an optional package."""
    return DataError(
        Problem(where=where, what=f"needs the package {package!r}", fix=install("hf")),
    )


def demand_packages(kinds: Iterable[tuple[str, str]]) -> None:
    """Errors: `DataError` for the first (kind, name of a source) whose reader needs a package that is not there."""
    for kind, name in kinds:
        for package in _PACKAGES.get(kind, ()):
            try:
                import_module(package)
            except ImportError:
                raise absent_package(name, package.partition(".")[0]) from None


def read_text(name: str, field: str) -> Iterator[tuple[str, float]]:
    """A file that is one document."""
    yield decode(Path(name).read_bytes(), name=name), 1.0


def read_library_source(name: str, field: str) -> Iterator[tuple[str, float]]:
    """As `read_text`; a source in another encoding, of which a standard library has a few, is no document."""
    try:
        yield from read_text(name, field)
    except DataError:
        return


def read_json_lines(name: str, field: str) -> Iterator[tuple[str, float]]:
    """A file with one JSON object a line; blank lines hold none."""
    size = Path(name).stat().st_size
    with open(name, "rb") as file:
        offset = 0
        for number, line in enumerate(file, 1):
            text = decode(line, name=f"{name}:{number}", offset=offset)
            offset += len(line)
            if text.strip():
                yield _json_field(text, field, where=f"{name}:{number}"), offset / size


def _json_field(line: str, field: str, *, where: str) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(
            Problem(where=where, what=f"not JSON: {error}", fix="one JSON object a line, each on a single line")
        ) from None
    if not isinstance(row, dict):
        raise DataError(Problem(where=where, what=f"a JSON {type(row).__name__}, not an object with {field!r}"))
    if field not in row:
        raise missing_field(where, field, list(row))
    value = row[field]
    if not isinstance(value, str):
        raise not_a_string(where, field, value)
    try:
        value.encode()  # JSON can escape half a character, which no tokenizer takes
    except UnicodeEncodeError as error:
        raise DataError(
            Problem(
                where=where,
                what=f"field {field!r} has half a surrogate pair at character {error.start}",
                why="it is no Unicode text",
                fix="take the escape out",
            )
        ) from None
    return value


def read_parquet(name: str, field: str) -> Iterator[tuple[str, float]]:
    """The rows of one column of a Parquet file."""
    demand_packages([(".parquet", name)])
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(name)
    except pyarrow.ArrowInvalid as error:
        raise DataError(Problem(where=name, what=f"not a Parquet file: {error}")) from error
    with file:
        names = file.schema_arrow.names
        if field not in names:
            raise missing_field(name, field, names)
        rows = file.metadata.num_rows
        values = (value for batch in file.iter_batches(1024, columns=[field]) for value in batch.column(0).to_pylist())
        for number, value in enumerate(values, 1):
            if not isinstance(value, str):
                raise not_a_string(f"{name}, row {number}", field, value)
            yield value, number / rows


def read_hub(name: str, field: str) -> Iterator[tuple[str, float]]:
    """The rows of one column of a Hugging Face data set, `name` being hf:owner/name[:split]."""
    demand_packages([(HUB, name)])
    import datasets

    _, dataset, *split = name.split(":", 2)
    try:
        rows = datasets.load_dataset(dataset, split=split[0] if split else "train")
    except Exception as error:  # whatever the package met on the way, the data set cannot be had
        raise DataError(
            Problem(
                where=name,
                what=f"cannot be loaded: {error}",
                fix="--data.path hf:owner/name[:split], a name and a split that exist, and a connection to the hub",
            )
        ) from error
    if field not in rows.column_names:
        raise missing_field(name, field, rows.column_names)
    for number, row in enumerate(rows.select_columns(field), 1):
        if not isinstance(row[field], str):
            raise not_a_string(f"{name}, row {number}", field, row[field])
        yield row[field], number / len(rows)


READERS: dict[str, Reader] = {
    ".txt": read_text,
    ".md": read_text,
    ".py": read_text,
    ".jsonl": read_json_lines,
    ".parquet": read_parquet,
    HUB: read_hub,
    STANDARD_LIBRARY: read_library_source,
}
FILE_KINDS = tuple(kind for kind in READERS if kind.startswith("."))

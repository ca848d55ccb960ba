"""Recipes: Python files that end in `config = ...`, found by name or by path."""

from __future__ import annotations

import ast
import re
import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from meshwright.errors import ConfigError, MeshwrightError, Problem, nearest, nearest_path

if TYPE_CHECKING:
    from meshwright.train.config import TrainConfig

SHIPPED = Path(__file__).parent
"""The folder of the recipes that come with meshwright."""
FIRST: Final = "llama3_debug"
"""The recipe to begin with: it runs on any machine."""


def names() -> tuple[str, ...]:
    """The recipes that come with meshwright."""
    found = (file.stem for file in SHIPPED.glob("*.py") if not file.stem.startswith("_"))
    return tuple(sorted(found, key=lambda name: (name != FIRST, _with_numbers(name))))


def _with_numbers(name: str) -> list[tuple[int, str]]:
    """A key that sorts llama3_8b before llama3_70b."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def summary(name: str) -> str:
    """The first line of a shipped recipe's docstring; "" where it has none."""
    docstring = ast.get_docstring(ast.parse((SHIPPED / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def title(name_or_path: str) -> str:
    """What a run of the recipe is called: its file's name without `.py`."""
    return Path(name_or_path).stem if _is_path(name_or_path) else name_or_path


def find(name_or_path: str) -> TrainConfig:
    """The config of a shipped recipe (`llama3_debug`) or of an own file (`./mine.py`).

    The file runs as a module; what lies beside an own one can be imported by it. Errors: `ConfigError` if there is no
    such recipe, if the file fails, or if it leaves no TrainConfig in `config`.
    """
    from meshwright.train.config import TrainConfig

    file = _file(name_or_path)
    module = _run(file)
    if not hasattr(module, "config"):
        raise ConfigError(
            Problem(
                where=str(file), what="the recipe sets no `config`", fix="end the file with config = TrainConfig(...)"
            )
        )
    config = module.config
    if not isinstance(config, TrainConfig):
        raise ConfigError(
            Problem(
                where=str(file),
                what=f"`config` is {_kind(config)}, not a TrainConfig",
                fix="end the file with config = TrainConfig(...)",
            )
        )
    return config


def _is_path(name_or_path: str) -> bool:
    return name_or_path.endswith(".py") or "/" in name_or_path or "\\" in name_or_path


def _file(name_or_path: str) -> Path:
    if not _is_path(name_or_path):
        if name_or_path in names():
            return SHIPPED / f"{name_or_path}.py"
        raise ConfigError(
            Problem(
                where="recipe",
                what=f"no recipe {name_or_path!r}{nearest(name_or_path, names())}",
                fix=f"one of {', '.join(names())}, or the path of an own file, ./{name_or_path}.py",
            )
        )
    file = Path(name_or_path).expanduser()
    if file.is_file():
        return file
    what = f"{file} is a folder" if file.is_dir() else f"{file} does not exist"
    near = "" if file.is_dir() else nearest_path(str(file))
    raise ConfigError(Problem(where="recipe", what=f"{what}{near}", fix="the path of a Python file"))


def _run(file: Path) -> ModuleType:
    shipped = file.parent == SHIPPED
    name = f"{__name__}.{file.stem}" if shipped else f"recipe_{file.stem}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(Problem(where=str(file), what="not a Python file", fix="a file whose name ends in .py"))
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses of the recipe look their annotations up there
    folder = str(file.resolve().parent)
    if not shipped and folder not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(_failed(file, error)) from error
    return module


def _failed(file: Path, error: BaseException) -> list[Problem]:
    where = f"{file}:{_line(file, error)}"
    if isinstance(error, MeshwrightError):
        return [
            Problem(where=f"{where}: {problem.where}", what=problem.what, why=problem.why, fix=problem.fix)
            for problem in error.problems
        ]
    reason = error.msg if isinstance(error, SyntaxError) else str(error)
    return [Problem(where=where, what=f"the recipe fails: {type(error).__name__}: {reason}")]


def _line(file: Path, error: BaseException) -> int:
    """The last line of the recipe that was running."""
    if isinstance(error, SyntaxError) and _same_file(error.filename, file):
        return error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if _same_file(frame.filename, file)]
    return lines[-1] or 1 if lines else 1


def _same_file(name: str | None, file: Path) -> bool:
    return name is not None and Path(name).resolve() == file.resolve()


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"

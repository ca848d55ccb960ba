"""Whether the fields of a recipe hold what they are for: a word of those that are known, yes or no, a whole number.

Flags are read as what a field wants; a recipe file may say anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from meshwright.errors import Problem, nearest
from meshwright.train.config import TrainConfig
from meshwright.train.numbers import RANGES

_SECTIONS: Final = ("parallel", "compute", "training", "optimizer", "checkpoint", "output", "launch")


def problems(config: TrainConfig) -> list[Problem]:
    """What is of another kind than its field, but for the numbers that `numbers` judges."""
    wrong = [problem for section in _SECTIONS for problem in _of_section(config, section)]
    return wrong + _of_layouts(config.layouts)


def _of_layouts(layouts: Any) -> list[Problem]:
    """Whether it can be called as it will be."""
    form = "layouts(spec, modules, plan)"
    if not callable(layouts):
        return [Problem(where="layouts", what=f"{layouts!r}", why=f"it is a function, {form}", fix=f"def {form}: ...")]
    try:
        signature = inspect.signature(layouts)
    except ValueError:  # of a function that says nothing of its arguments
        return []
    try:
        signature.bind("spec", "modules", "plan")
    except TypeError as error:
        code, name = getattr(layouts, "__code__", None), getattr(layouts, "__name__", "layouts")
        place = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "layouts"
        known = len(signature.parameters)
        missing = f": it has no {' and no '.join(_ARGUMENTS[known:])}" if known < len(_ARGUMENTS) else f": {error}"
        return [
            Problem(
                where=place,
                what=f"{name}{signature} cannot be called as {form}{missing}",
                why="layouts attaches a sharding_config to each module's config, under the plan of the run",
                fix=f"def {name}(spec, modules, plan):",
            )
        ]
    return []


_ARGUMENTS: Final = ("spec", "modules", "plan")


def _of_section(config: TrainConfig, section: str) -> Iterator[Problem]:
    value, wanted = getattr(config, section), get_type_hints(TrainConfig)[section]
    if not isinstance(value, wanted):
        yield Problem(where=section, what=f"{value!r}", fix=f"{section}={wanted.__name__}(...)")
        return
    assert is_dataclass(value)
    hints = get_type_hints(type(value))
    for field in fields(value):
        held = getattr(value, field.name)
        if f"{section}.{field.name}" not in RANGES and not _is(held, hints[field.name]):
            yield Problem(
                where=f"{section}.{field.name}",
                what=f"{held!r}{_near(held, hints[field.name])}",
                why=f"it is {_words(hints[field.name])}",
                fix=f"{field.name} = {_example(hints[field.name])}",
            )


def _is(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return any(value is each or (type(value) is str and value == each) for each in get_args(hint))
    if origin in (Union, UnionType):
        return any(_is(value, each) for each in get_args(hint))
    return type(value) is hint if hint in (bool, int, NoneType) else isinstance(value, hint)


def _words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_words(each) for each in get_args(hint))
    return {bool: "True or False", int: "a whole number", float: "a number", str: "a text", NoneType: "None"}[hint]


def _example(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return _example(get_args(hint)[0])
    return repr(get_args(hint)[0]) if get_origin(hint) is Literal else _words(hint)


def _near(value: Any, hint: Any) -> str:
    return nearest(str(value), tuple(map(str, get_args(hint)))) if get_origin(hint) is Literal else ""

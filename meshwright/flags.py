"""Flags of the command line for every field of a config: `--section.field value`."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import fields, is_dataclass
from itertools import dropwhile, takewhile
from typing import Any, TypeVar, get_args, get_type_hints

import tyro

from meshwright.errors import ConfigError, Problem, nearest

Config = TypeVar("Config")

STYLE = (tyro.conf.AvoidSubcommands, tyro.conf.HelptextFromCommentsOff)


def parse(config: Config, arguments: Sequence[str], *, program: str) -> Config:
    """A copy of the dataclass `config` in which the flags among `arguments` are set.

    A field that is annotated with an abstract class has the flags of the object that `config` holds there. `--help`
    prints the flags and ends with SystemExit(0). Errors: `ConfigError` for a flag that does not exist and for a value
    that its field cannot hold.
    """
    explained = io.StringIO()
    try:
        with redirect_stderr(explained):
            parsed, unknown = tyro.cli(
                type(config),
                default=config,
                args=list(arguments),
                prog=program,
                config=STYLE,
                return_unknown_args=True,
            )
    except SystemExit as end:
        if not end.code:
            raise
        raise ConfigError(_problem("command line", _unboxed(explained.getvalue()), program)) from None
    if unknown:
        raise ConfigError(_unknown(unknown[0], list(names(config)), program))
    return parsed


def names(config: Any, prefix: str = "--") -> Iterator[str]:
    """The flags that set the fields of the dataclass `config` and of those that it holds now."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, name = getattr(config, field.name), field.name.replace("_", "-")
        absent = value is None and any(is_dataclass(kind) for kind in get_args(hints[field.name]))
        if is_dataclass(value):
            yield from names(value, f"{prefix}{name}.")
        elif not callable(value) and not absent:
            yield f"{prefix}{name}"
            if isinstance(value, bool):
                yield f"{prefix}no-{name}"


def _unknown(token: str, known: Sequence[str], program: str) -> Problem:
    flag = token.partition("=")[0]
    if not flag.startswith("-"):
        return _problem(token, "a value without a flag", program)
    flag = flag.replace("_", "-")
    alike = [name for name in known if _leaf(name) == _leaf(flag)]  # `--tp` for `--parallel.tp`
    meant = f", did you mean {alike[0]!r}?" if alike else nearest(flag, known)
    return _problem(flag, f"no such flag{meant}", program)


def _leaf(flag: str) -> str:
    return flag.lstrip("-").rpartition(".")[2]


def _problem(where: str, what: str, program: str) -> Problem:
    return Problem(where=where, what=what, fix=f"`{program} --help` lists the flags and what they take")


def _unboxed(text: str) -> str:
    """The message that tyro draws under a title: what stands between the first rule, or the title, and the next."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.strip("│╭╮╰╯ ") for line in plain.splitlines()[1:]]
    body = dropwhile(_is_rule, filter(None, lines))
    return " ".join(takewhile(lambda line: not _is_rule(line), body))


def _is_rule(line: str) -> bool:
    return set(line) <= set("─-")

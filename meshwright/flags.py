"""Flags of the command line for every field of a config: `--section.field value`."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import fields, is_dataclass
from itertools import dropwhile, takewhile
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from meshwright.errors import ConfigError, Problem, either, nearest

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
        told = list(_misfits(config, arguments))
        raise ConfigError(told or _problem("command line", _unboxed(explained.getvalue()), program)) from None
    if unknown:
        raise ConfigError(_switch(unknown[0], config, arguments) or _unknown(unknown[0], list(names(config)), program))
    return parsed


def names(config: Any, prefix: str = "--") -> Iterator[str]:
    """The flags that set the fields of the dataclass `config` and of those that it holds now."""
    for flag, hint in _kinds(config, prefix):
        yield flag
        if hint is bool:
            section, name = flag[: flag.rindex(".") + 1] if "." in flag else "--", _leaf(flag)
            yield f"{section}no-{name}"


def _kinds(config: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """Each flag, and what its field holds."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, name = getattr(config, field.name), field.name.replace("_", "-")
        absent = value is None and any(is_dataclass(kind) for kind in get_args(hints[field.name]))
        if is_dataclass(value):
            yield from _kinds(value, f"{prefix}{name}.")
        elif not callable(value) and not absent:
            yield f"{prefix}{name}", hints[field.name]


def _misfits(config: Any, arguments: Sequence[str]) -> Iterator[Problem]:
    """The flags without a value, and with one that their field cannot hold."""
    kinds = dict(_kinds(config))
    for place, argument in enumerate(arguments):
        word, equals, value = argument.partition("=")
        flag = word.replace("_", "-")
        hint = kinds.get(flag, bool)
        if hint is bool or get_origin(hint) is tuple:
            continue
        following = arguments[place + 1 : place + 2]
        if not equals and (not following or following[0].startswith("--")):
            yield Problem(where=flag, what="no value follows it", fix=_one_of(flag, hint))
            continue
        given = value if equals else following[0]
        if not _fits(given, hint):
            yield Problem(
                where=flag, what=f"{_not(given, hint)}{nearest(given, _words(hint))}", fix=_one_of(flag, hint)
            )


def _fits(text: str, hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(text, each) for each in get_args(hint))
    if get_origin(hint) is Literal or hint is NoneType:
        return text in _words(hint)
    try:
        hint(text)
    except (TypeError, ValueError):
        return hint not in (int, float)
    return True


def _words(hint: Any) -> list[str]:
    """The words that a field can hold."""
    if get_origin(hint) in (Union, UnionType):
        return [word for each in get_args(hint) for word in _words(each)]
    return ["None"] if hint is NoneType else [str(each) for each in get_args(hint)]


def _one_of(flag: str, hint: Any) -> str:
    """What to write."""
    words = _words(hint)
    numbers = [_NUMBERS[kind] for kind in (hint, *get_args(hint)) if kind in (int, float, str)]
    if numbers:
        return " or ".join([f"{flag} with {numbers[0]}", *words])
    return f"{flag} {either(words)}"


def _not(given: str, hint: Any) -> str:
    """That what is given is none of what the field holds."""
    kinds = [_NUMBERS[kind] for kind in (hint, *get_args(hint)) if kind in (int, float)]
    return f"{given!r} is not {kinds[0]}" if kinds else repr(given)


_NUMBERS: Final = {int: "a whole number", float: "a number", str: "a text"}


def _switch(token: str, config: Any, arguments: Sequence[str]) -> Problem | None:
    """Of a value behind a switch, as `--flag yes`."""
    before = arguments[arguments.index(token) - 1].replace("_", "-") if token in arguments[1:] else ""
    if before not in [flag for flag, hint in _kinds(config) if hint is bool]:
        return None
    off = f"{before[: before.rindex('.') + 1] if '.' in before else '--'}no-{_leaf(before)}"
    return Problem(where=before, what=f"{token!r} follows it, and a switch takes no value", fix=f"{before}, or {off}")


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

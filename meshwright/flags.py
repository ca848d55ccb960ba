"""Flags of the command line for every field of a config: `--section.field value`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import tyro

from meshwright.errors import ConfigError, Problem, nearest

Config = TypeVar("Config")


def parse(config: Config, arguments: Sequence[str], *, program: str) -> Config:
    """A copy of the dataclass `config` in which the flags among `arguments` are set.

    A field that is annotated with an abstract class has the flags of the object that `config` holds there. `--help`
    prints the flags and ends with SystemExit(0); a value that cannot be read as its field's type is explained and ends
    with SystemExit(2). Raises ConfigError for a flag that does not exist.
    """
    parsed, unknown = tyro.cli(
        type(config),
        default=config,
        args=list(arguments),
        prog=program,
        return_unknown_args=True,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.HelptextFromCommentsOff),
    )
    if unknown:
        raise ConfigError(_unknown(unknown[0], list(names(config)), program))
    return parsed


def names(config: Any, prefix: str = "--") -> Iterator[str]:
    """The flags that set the fields of the dataclass `config`, nested ones too."""
    for field in fields(config):
        value, name = getattr(config, field.name), field.name.replace("_", "-")
        if is_dataclass(value):
            yield from names(value, f"{prefix}{name}.")
        elif not callable(value):
            yield f"{prefix}{name}"
            if isinstance(value, bool):
                yield f"{prefix}no-{name}"


def _unknown(token: str, known: Sequence[str], program: str) -> Problem:
    flag = token.partition("=")[0]
    what = f"no such flag{nearest(flag, known)}" if flag.startswith("-") else "not a flag: a value that no flag takes"
    return Problem(where=flag, what=what, fix=f"`{program} --help` lists the flags")

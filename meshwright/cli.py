"""The command line: `meshwright COMMAND ...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from meshwright import __version__, recipes, terminal
from meshwright.errors import ConfigError, DataError, MeshwrightError, Problem, nearest
from meshwright.train.show.run_folder import RunFolder

if TYPE_CHECKING:
    from meshwright.train.config import TrainConfig

HELP = ("-h", "--help")
JSON: Final = "--json"


@dataclass(frozen=True, kw_only=True)
class Command:
    """One word after `meshwright`.

    run: the arguments after that word -> exit code; more: lines of its help
    """

    usage: str
    summary: str
    run: Callable[[Sequence[str]], int]
    more: tuple[str, ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code.

    0 all is well, 1 the run failed or what was checked is wrong, 2 the command line, the recipe or the data is wrong,
    130 stopped with Ctrl-C, 141 nobody reads the output to its end. What meshwright raises on purpose is shown as one
    message.
    """
    try:
        code = _dispatch(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        terminal.silence()
        return terminal.BROKEN_PIPE
    except MeshwrightError as error:
        if not _is_repeated():
            terminal.show_error(str(error))
        return 2 if isinstance(error, (ConfigError, DataError)) else 1
    except KeyboardInterrupt:
        terminal.err().print("stopped")
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


def _is_repeated() -> bool:
    """Whether another rank on this terminal says the same: under torchrun all of a machine read the command line."""
    return os.environ.get("LOCAL_RANK", "0") != "0" and RunFolder.inherited() is None


def _dispatch(arguments: list[str]) -> int:
    word, *rest = arguments or ["--help"]
    if word in HELP:
        terminal.out().print(_help(), soft_wrap=True)
        return 0
    if word == "--version":
        terminal.out().print(f"meshwright {__version__}")
        return 0
    if word not in COMMANDS:
        raise ConfigError(
            Problem(
                where=word, what=f"no such command{nearest(word, list(COMMANDS))}", fix=f"one of {', '.join(COMMANDS)}"
            )
        )
    return COMMANDS[word].run(rest)


def _train(arguments: Sequence[str]) -> int:
    if _asks_for_help("train", arguments):
        return 0
    from meshwright.train.checkpoint import resume

    arguments = resume.expand(arguments)
    recipe, config = _recipe("train", arguments)
    if config.checkpoint.resume is not None and resume.VARIABLE not in os.environ:
        arguments = resume.inherit(arguments, resume.find(config, recipes.title(recipe)))
        recipe, config = _recipe("train", arguments)
    if _is_first():
        _demand_right_types(recipe, config)
    from meshwright.train.launch.parent import train

    return train(recipe, config, ["train", *arguments])


def _is_first() -> bool:
    """Whether this process is asked by a person: not a rank that was started, or the first of them under torchrun."""
    return os.environ.get("RANK", "0") == "0" and RunFolder.inherited() is None


def _demand_right_types(recipe: str, config: TrainConfig) -> None:
    """Errors: `ConfigError` where the first rank's step, followed on shapes, is not what is declared. An op of which
    nothing is known stops no training; `meshwright check` tells it.
    """
    from meshwright.audit import check

    problems = check(config, recipe, lambda dims: (0,)).known
    if problems:
        raise ConfigError(problems)


def _check(arguments: Sequence[str]) -> int:
    if _asks_for_help("check", arguments):
        return 0
    as_json = JSON in arguments
    rest = [argument for argument in arguments if argument != JSON]
    from meshwright.audit import Report, check, document, show

    try:
        recipe, config = _recipe("check", rest)
    except MeshwrightError as error:
        if as_json:
            unread = Report("".join(rest[:1]), problems=list(error.problems))
            sys.stdout.write(f"{document(unread)}\n")
        raise
    from meshwright.train.preflight import started

    report = check(config, recipe)
    report.add(started(config))
    if as_json:
        sys.stdout.write(f"{document(report)}\n")
    else:
        show(report, terminal.out())
    return 0 if report.right else 1


def _parity(arguments: Sequence[str]) -> int:
    if _asks_for_help("parity", arguments):
        return 0
    from meshwright import parity

    return parity.run(arguments)


def _asks_for_help(word: str, arguments: Sequence[str]) -> bool:
    """Whether the help of a command was asked for; it is shown then."""
    asked = bool(arguments) and arguments[0] in HELP
    if asked:
        terminal.out().print(_command_help(word), soft_wrap=True)
    return asked


def _recipe(word: str, arguments: Sequence[str]) -> tuple[str, TrainConfig]:
    """The recipe that a command is given, with the flags that follow it."""
    if not arguments or arguments[0].startswith("-"):
        found = f"{arguments[0]!r} where the recipe belongs" if arguments else "no recipe"
        raise ConfigError(Problem(where=f"meshwright {word}", what=found, fix=f"meshwright {word} {recipes.FIRST}"))
    from meshwright import flags

    recipe, *rest = arguments
    return recipe, flags.parse(recipes.find(recipe), rest, program=f"meshwright {word} {recipe}")


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {word:<{width}}  {command.summary}" for word, command in COMMANDS.items()]
    return "\n".join(
        [
            "Train large PyTorch models whose every sharding is declared, checked and erased.",
            "",
            "usage: meshwright COMMAND ...",
            "",
            *lines,
            "",
            "`meshwright COMMAND --help` says more. --version prints the version.",
        ]
    )


def _command_help(word: str) -> str:
    command = COMMANDS[word]
    width = max((len(name) for name in recipes.names()), default=0)
    return "\n".join(
        [
            f"usage: {command.usage}",
            "",
            command.summary[0].upper() + command.summary[1:] + ".",
            *command.more,
            "",
            "RECIPE is one of these names, or the path of an own file, ./mine.py, that ends in `config = ...`:",
            "",
            *(f"  {name:<{width}}  {recipes.summary(name)}".rstrip() for name in recipes.names()),
            "",
            f"Every field of a recipe is a flag; `meshwright {word} RECIPE --help` lists them with its values.",
        ]
    )


COMMANDS = {
    "train": Command(
        usage="meshwright train RECIPE [--resume [PATH]] [--section.field value ...]",
        summary="train a recipe on this machine's processes; under torchrun, on many machines",
        run=_train,
        more=(
            "--resume goes on from the newest checkpoint of the recipe's newest run, --resume PATH from that of a run",
            "folder, or from a checkpoint; --checkpoint.every N keeps them.",
        ),
    ),
    "check": Command(
        usage="meshwright check RECIPE [--json] [--section.field value ...]",
        summary="judge a recipe's layouts and types, and say what its ranks send; without devices",
        run=_check,
        more=("It ends with 0 if all is right, with 1 if anything is wrong. --json prints one JSON document.",),
    ),
    "parity": Command(
        usage="meshwright parity RECIPE [--ranks N] [--all] [--layout X] [--fast] [--json] [--section.field value ...]",
        summary="hold layouts and backends of a recipe, made small, against one device: loss, gradients, weights",
        run=_parity,
        more=(
            "--ranks N tries a covering set of layouts of at most N ranks (default 4, at most 8), with --all all of",
            "them; --layout dp_shard=2,tp=2 that one (repeat it). --backends spmd_types,full_dtensor,partial_dtensor:",
            "some of them. --fast: simulated ranks, without processes, FSDP and pipelines. --json prints one JSON",
            "document. It ends with 0 if every cell is as one device, with 1 if any is not.",
        ),
    ),
}
"""The commands, in the order in which the help lists them."""

"""`python -m tests.mutants`: plant faults in right programs, and print which of them the checker reports.

python -m tests.mutants                        all; exit code 1 where too few are reported or a right program is refused
python -m tests.mutants perceptron attention   of these programs alone
python -m tests.mutants --programs             one row a program instead of one a kind of fault
python -m tests.mutants --axes                 also list those that are reported under another axis
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.mutants.program import Program
from tests.mutants.programs import PROGRAMS
from tests.mutants.run import Outcome, judged, mutants, outcome
from tests.mutants.tally import COLUMNS, LEAST_NAMED, LEAST_REPORTED, LEGEND, Tally, by


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    flags = {one for one in arguments if one.startswith("--")}
    names = [one for one in arguments if one not in flags] or list(PROGRAMS)
    unknown = [one for one in names if one not in PROGRAMS] + sorted(flags - {"--programs", "--axes"})
    if unknown:
        console.print(f"no program or flag {', '.join(unknown)}; programs: {', '.join(PROGRAMS)}")
        return 2
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    refused = {name: told for name in names if (told := _told(PROGRAMS[name]))}
    found = _outcomes(console, [PROGRAMS[name] for name in names if name not in refused])
    return _reported(console, flags, [f"{name}: {told}" for name, told in refused.items()], found)


def _told(program: Program) -> str:
    """What is said of a right program, "" where it is accepted. Its mutants would prove nothing."""
    said, broke = judged(program, program.run)
    return broke or "".join(said[:1])


def _outcomes(console: Console, programs: Sequence[Program]) -> list[Outcome]:
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    all_of_them = [one for program in programs for one in mutants(program.name)]
    found = []
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(all_of_them))
        for mutant in all_of_them:
            progress.update(bar, description=mutant.program.name)
            found.append(outcome(mutant))
            progress.advance(bar)
    return found


def _reported(console: Console, flags: set[str], refused: Sequence[str], found: Sequence[Outcome]) -> int:
    key = "program" if "--programs" in flags else "kind of fault"
    rows = by(lambda one: one.mutant.program.name if key == "program" else one.mutant.operator, found)
    total = Tally(tuple(found))
    table = Table(key, *COLUMNS, box=box.SIMPLE, padding=(0, 0, 0, 1))
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for name, one in rows.items():
        table.add_row(name, *one.counts, style=None if one.enough else "yellow")
    table.add_section()
    table.add_row("all", *total.counts, style="bold")
    console.print(table)
    console.print(LEGEND, style="dim")
    _list(console, "right programs that are refused", refused)
    _list(
        console,
        "escaped",
        [f"{one.mutant}  ({one.shows}{one.broke and '; the check: ' + one.broke})" for one in total.escaped],
    )
    if "--axes" in flags:
        unnamed = [one for one in total.about_an_axis if one not in total.named]
        _list(console, "another axis", [f"{one.mutant}: {one.said[0].splitlines()[0]}" for one in unnamed])
    told = sum(bool(one.broke) for one in total.escaped)
    console.print(f"{len(total.escaped)} escaped; torch's own error ends the check of {told} of them")
    shares = len(total.reported) / max(1, len(total.changing)), len(total.named) / max(1, len(total.about_an_axis))
    console.print(
        f"reported {shares[0]:.2%} of what changes something (at least {LEAST_REPORTED:.0%}), "
        f"{shares[1]:.2%} of these under the right axis (at least {LEAST_NAMED:.0%})"
    )
    return int(bool(refused) or not total.enough)


def _list(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        console.print(f"{title}:", style="red")
    for line in lines:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

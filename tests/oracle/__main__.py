"""`python -m tests.oracle`: prove every rule on all draws, and print what came of it.

python -m tests.oracle                  all ops; exit code 1 on a lie or on too many needless refusals
python -m tests.oracle softmax conv2d   only these
python -m tests.oracle --support-page   write docs/support.md anew
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.oracle.needless import MOST, NEEDLESS
from tests.oracle.run import FULL, Tally, proven
from tests.oracle.samples import by_op
from tests.oracle.support import PAGE, page


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    console = Console()
    if "--support-page" in arguments:
        PAGE.write_text(page())
        console.print(f"wrote {PAGE}")
        return 0
    known = by_op()
    unknown = [name for name in arguments if name not in known]
    if unknown:
        console.print(f"no samples of {', '.join(unknown)}")
        return 2
    return _reported(console, _proven(console, arguments or sorted(known)))


def _proven(console: Console, names: Sequence[str]) -> dict[str, Tally]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = by_op()
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found = {}
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(names))
        for name in names:
            progress.update(bar, description=name)
            found[name] = proven(known[name], FULL)
            progress.advance(bar)
    return found


def _reported(console: Console, found: dict[str, Tally]) -> int:
    table = Table("op", "samples", "accepted", "refused", "needless", "lies")
    total = Tally()
    for column in table.columns[1:]:
        column.justify = "right"
    known = by_op()
    for name, one in found.items():
        total.merge(one)
        style = "red" if one.lies else "yellow" if one.needless else None
        table.add_row(name, str(len(known[name])), *one.counts, style=style)
    table.add_section()
    table.add_row(f"{len(found)} ops", str(sum(len(known[name]) for name in found)), *total.counts, style="bold")
    console.print(table)
    share = len(total.needless) / max(total.draws, 1)
    console.print(f"{total.draws} draws, {share:.2%} refused needlessly (at most {MOST:.0%})")
    unexplained = sorted({case for case in total.needless if case.split()[0] not in NEEDLESS})
    for told in (*total.lies, *(f"needless, without a reason: {case}" for case in unexplained)):
        console.print(told, style="red", markup=False)
    return int(bool(total.lies or unexplained) or share > MOST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

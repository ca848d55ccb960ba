"""A report for people: the verdict, all problems by module, and the table of collectives."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshwright.audit.report import Report, Traffic
from meshwright.errors import Problem
from meshwright.terminal import Path, print_table


def show(report: Report, console: Console) -> None:
    """Print it."""
    console.print(_verdict(report), soft_wrap=True)
    for each in report.believed if report.right else ():
        console.print(Text(f"taken on trust: {each}", style="dim"), soft_wrap=not console.is_terminal)
    for number, problem in enumerate(report.told, 1):
        console.print()
        if console.is_terminal:
            lines = Table.grid(padding=(0, 1))
            lines.add_row(f"{number}.", _problem(problem))
            console.print(lines)
        else:
            console.print(Text(f"{number}. ").append(_problem(problem)), soft_wrap=True)
    if report.traffic and report.right:
        print_table(_table(report.traffic, report.stages), console)
        if report.uncounted:
            console.print(Text(f"not counted: {report.uncounted}", style="dim"), soft_wrap=True)


def _verdict(report: Report) -> Text:
    text = Text(f"{report.recipe} on {report.ranks}: " if report.ranks else f"{report.recipe}: ")
    count = len(report.told)
    if report.right:
        ranks = ", ".join(map(str, report.judged))
        text.append("right", style="bold green")
        return text.append(f", the types of a whole step on {'rank' if len(report.judged) == 1 else 'ranks'} {ranks}")
    text.append("wrong", style="bold red")
    return text.append(f", {count} {'problem' if count == 1 else 'problems'}")


def _problem(problem: Problem) -> Text:
    text = Text().append(problem.where, style="bold").append(f": {problem.what}")
    if problem.code is not None:
        text.append(f" [{problem.code.value}]", style="dim")
    for name, value in (("why", problem.why), ("fix", problem.fix)):
        if value:
            text.append(f"\n   {name}: ", style="dim")
            text.append(value, style="green" if name == "fix" else "")
    return text


def _table(rows: list[Traffic], stages: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    of = "a rank sends, in one step" if stages == 1 else "a rank sends, in one step, of what is on its stages"
    table.add_column(of, overflow="fold")
    table.add_column("times", justify="right", no_wrap=True)
    for direction in ("forward", "backward"):
        table.add_column(direction, no_wrap=True, min_width=14)
        table.add_column("", justify="right", no_wrap=True, min_width=9)
    for axis in dict.fromkeys(row.axis for row in rows):
        mine = [row for row in rows if row.axis == axis]
        sums = (size(sum(row.sent_forward for row in mine)), size(sum(row.sent_backward for row in mine)))
        table.add_row(f"over {axis}", "", "all", sums[0], "all", sums[1], style="bold")
        for row in mine:
            table.add_row(
                Padding(Path(f"{row.module}, {row.what}"), (0, 0, 0, 2)),
                str(row.count),
                row.forward,
                size(row.sent_forward) if row.forward else "",
                row.backward,
                size(row.sent_backward) if row.backward else "",
            )
        table.add_section()
    return table


def size(count: int) -> str:
    """Bytes in words: `1.75 MiB`."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.4g} {_UNITS[unit]}"


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

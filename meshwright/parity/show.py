"""A matrix for people: the verdict, a row a layout, and beneath it what each number stands for."""

from __future__ import annotations

import math
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshwright.errors import MeshwrightError
from meshwright.parity.cell import Cell, Matrix, Verdict
from meshwright.parity.compare import WITHIN, Off
from meshwright.parity.matrix import SIMULATED
from meshwright.terminal import Path, print_table

_STYLE: Final = {
    Verdict.OK: "green",
    Verdict.OFF: "bold red",
    Verdict.NONE: "dim",
    Verdict.REFUSED: "bold red",
    Verdict.FAILED: "bold red",
}
_CALLED: Final = {
    "loss": "the loss",
    "grad_norm": "the gradient norm",
    "weights": "first values of",
    "grads": "gradient of",
    "updated": "update of",
    "means": "the optimizer's mean for",
    "squares": "the optimizer's mean square for",
}


def show(matrix: Matrix, console: Console) -> None:
    """Print it."""
    notes: dict[str, int] = {}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layout", overflow="fold")
    for backend in matrix.backends:
        table.add_column(backend, no_wrap=True)
    for row in matrix.rows:
        table.add_row(Path(row[0].layout), *(_cell(cell, notes) for cell in row))
    console.print(_verdict(matrix), soft_wrap=True)
    print_table(table, console)
    for note, number in notes.items():
        console.print(f"[{number}] {note}", soft_wrap=True)


def _verdict(matrix: Matrix) -> Text:
    text = Text(f"{matrix.recipe}: ")
    wrong = sum(not cell.right for cell in matrix.cells)
    if matrix.right:
        text.append("right", style="bold green")
        cells = "1 cell equals" if len(matrix.compared) == 1 else f"{len(matrix.compared)} cells equal"
        text.append(f", {cells} one device within {WITHIN:g}, small shapes in float32")
    elif wrong:
        text.append("wrong", style="bold red").append(f", in {wrong} of {len(matrix.cells)} cells")
    else:
        text.append("nothing compared", style="bold red").append(": the model has none of these layouts")
    if matrix.ranks == SIMULATED:
        text.append("; simulated ranks: no processes, no FSDP, no pipeline")
    return text


def _cell(cell: Cell, notes: dict[str, int]) -> Text:
    style = _STYLE[cell.verdict]
    if cell.verdict is Verdict.OK:
        return Text(f"ok {cell.error:.0e}", style=style)
    note = notes.setdefault(explained(cell), len(notes) + 1)
    return Text(f"{cell.verdict.value} [{note}]", style=style)


def explained(cell: Cell) -> str:
    """What is off and by what law, or why there was no step."""
    if not cell.off:
        return str(MeshwrightError(cell.problems))
    law = cell.law.words if cell.law else ""
    told = [_off(off) for off in cell.off[:-1]]
    return "; ".join([*told, f"{_off(cell.off[-1])}: {law}"])


def _off(off: Off) -> str:
    size = f"{off.error:.1e}" if math.isfinite(off.error) else "infinite"
    more = f" and {off.more} more" if off.more else ""
    return f"{' '.join(filter(None, (_CALLED[off.kind], off.name)))}{more} off by {size}"

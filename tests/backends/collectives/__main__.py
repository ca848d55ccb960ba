"""Writes the files anew: python -m tests.backends.collectives [layout ...]"""

from __future__ import annotations

import sys

from benchmarks.eager_step import fake_world
from benchmarks.moe import dealt_evenly
from tests.backends.collectives.cells import BACKENDS, EXPERTS, OF_EIGHT, PIPELINES, Cell, calls_of, text_of
from tests.processes import ranks


def main() -> None:
    wanted = sys.argv[1:] or [*OF_EIGHT, *EXPERTS, *PIPELINES]
    for layout in wanted:
        for cell in (Cell(layout, backend) for backend in BACKENDS):
            if layout in PIPELINES:
                parts = ranks(4).run(calls_of, cell)
                text = text_of(cell, parts[:: cell.dims.world // cell.dims.pp])
            else:
                with fake_world(), dealt_evenly():
                    text = text_of(cell, [calls_of(0, cell)])
            cell.file.parent.mkdir(exist_ok=True)
            cell.file.write_text(text)
            print(f"wrote {cell.file}", flush=True)


if __name__ == "__main__":
    main()

"""`docs/parity.md`: no cell is empty, and what it says of a backend is so."""

from __future__ import annotations

import pytest

from meshwright.parity import processes
from tests.parity.table import FILE, OTHERS, RECIPES, WITHIN, Row, apart, cell, document, layouts, of, rows

CURVE = [(2.0, 1.0), (1.5, 0.5)]


def test_a_cell_says_bits_or_a_difference_or_why_not():
    assert cell(CURVE, CURVE) == "equal bits"
    assert cell([(2.0, 1.0), (1.5, 0.5000001)], CURVE).startswith("2e-07, ")
    assert cell("heads do not split", CURVE) == cell(CURVE, "heads do not split") == "refused: heads do not split"
    assert apart([(2.0, 1.0), (3.0, 0.5)], CURVE) == 1.0


def test_a_page_has_no_empty_cell():
    curves = {"spmd_types": CURVE, "full_dtensor": CURVE, "partial_dtensor": "not here"}
    line = document([Row("Llama 3", "FSDP 2", CURVE, curves)]).splitlines()[-1]
    assert line == "| Llama 3 | FSDP 2 | 2 | equal bits | equal bits | refused: not here |"


def test_the_page_in_the_repository_has_every_model_and_layout_and_nothing_empty():
    table = [line for line in FILE.read_text().splitlines() if line.startswith("| ")][2:]
    named = [tuple(part.strip() for part in line.strip("|").split("|")) for line in table]
    assert [row[:2] for row in named] == [(model, layout) for model in RECIPES for layout in of(model)]
    assert all(all(row) for row in named)
    assert not any("refused" in part for row in named for part in row)


started = []


class Unruly:
    """Stands in for processes whose program raises what is no error of meshwright's."""

    def __init__(self, world):
        self.pipes, self.ended = [None] * world, False
        started.append(self)

    def run(self, program, *args):
        raise ZeroDivisionError

    def end(self):
        self.ended = True


def test_no_process_stays_where_a_row_raises(monkeypatch):
    monkeypatch.setattr(processes, "Ranks", Unruly)
    with pytest.raises(ZeroDivisionError):
        list(rows({"Llama 3": "llama3_debug"}, {"TP 2": layouts()["TP 2"]}))
    assert [ranks.ended for ranks in started] == [True]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_backends_agree_within_what_the_page_says():
    for row in rows():
        for backend in OTHERS:
            assert apart(row.curves[backend], row.curves["spmd_types"]) <= WITHIN, (row.model, row.layout, backend)

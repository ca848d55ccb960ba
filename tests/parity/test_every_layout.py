"""Every layout of at most eight ranks, with every schedule, equals one device: gradients, updated weights, state."""

from __future__ import annotations

import pytest

from meshwright.parity.cell import Verdict
from meshwright.parity.compare import WITHIN
from meshwright.parity.layouts import every, world_of
from meshwright.parity.matrix import compare
from meshwright.parity.recipe import Recipe
from meshwright.parity.show import explained

MOST = 8


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("world", range(2, MOST + 1))
def test_every_layout_equals_one_device(world):
    layouts = [layout for layout in every(MOST) if world_of(layout) == world]
    matrix = compare(Recipe("llama3_debug"), layouts, ["spmd_types"])
    assert [explained(cell) for cell in matrix.cells if not cell.right] == []
    assert len(matrix.cells) == len(layouts)
    assert max(cell.error for cell in matrix.compared) < WITHIN
    impossible = [cell for cell in matrix.cells if cell.verdict is Verdict.NONE]
    assert all("do not" in problem.what or "units" in problem.what for cell in impossible for problem in cell.problems)

"""Every layout of at most eight ranks, with every schedule, equals one device: gradients, updated weights, state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.models.attention import legal_tp
from meshwright.parity.cell import Verdict
from meshwright.parity.compare import WITHIN
from meshwright.parity.layouts import covering, every, named, world_of
from meshwright.parity.matrix import compare
from meshwright.parity.recipe import Recipe
from meshwright.parity.refusals import refusal
from meshwright.parity.shapes import Shapes
from meshwright.parity.show import explained
from meshwright.train.config import ParallelConfig

MOST = 8
RECIPE = Recipe("llama3_debug")
CONFIG = RECIPE.load()


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("world", range(2, MOST + 1))
def test_every_layout_equals_one_device(world):
    layouts = [layout for layout in every(MOST) if world_of(layout) == world]
    matrix = compare(RECIPE, layouts, ["spmd_types"])
    assert [explained(cell) for cell in matrix.cells if not cell.right] == []
    assert len(matrix.cells) == len(layouts)
    assert max(cell.error for cell in matrix.compared) < WITHIN
    assert none_of(matrix) == {named(layout) for layout in layouts if impossible(CONFIG, layout)}


def impossible(config, layout):
    """Heads, columns and blocks are whole, and each stage has one: said anew, of the small model's numbers."""
    model = Shapes.of(config, layout).shrunk(config, layout).model
    stages = layout.pp * (1 if layout.schedule in ("1f1b", "gpipe") else 2)
    return (
        layout.tp not in legal_tp(model.heads, model.kv_heads)
        or any(length % layout.tp for length in (model.vocab, model.hidden))
        or (layout.pp > 1 and stages > model.layers + 2)
    )


def none_of(matrix):
    return {cell.layout for cell in matrix.cells if cell.verdict is Verdict.NONE}


def test_most_layouts_are_possible():
    possible = [layout for layout in every(MOST) if not impossible(CONFIG, layout)]
    assert len(possible) > len(every(MOST)) * 2 / 3


@pytest.mark.parametrize("vocab", [4096, 4098])
def test_the_impossible_ones_are_refused_and_no_other(vocab):
    """A vocabulary that 2, 3 and 6 divide, but not 4, takes layouts away too."""
    config = replace(CONFIG, model=replace(CONFIG.model, vocab=vocab))
    layouts = [*covering(MOST), ParallelConfig(tp=3), ParallelConfig(tp=4)]
    refused = {}
    for layout in layouts:
        small = Shapes.of(config, layout).shrunk(config, layout)
        refused[named(layout)] = (refusal(small) or (Verdict.OK, ()))[0]
    wanted = {named(layout): Verdict.NONE if impossible(config, layout) else Verdict.OK for layout in layouts}
    assert refused == wanted
    assert wanted["tp=3"] is Verdict.NONE
    assert (wanted["tp=4"] is Verdict.NONE) == (vocab == 4098)

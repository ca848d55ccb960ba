"""`check` knows the further prediction: right in every layout, and what is sent for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.audit import check
from meshwright.models.layouts import activation, state
from meshwright.types.kinds import R, S
from tests.audit.recipes import declares
from tests.models.specs import small_deepseek_v3
from tests.parity.harness import laid_out

LAYOUTS = [
    {},
    {"tp": 2},
    {"tp": 2, "sequence_parallel": False},
    {"cp": 2, "tp": 2},
    {"dp_shard": 2, "tp": 2, "ep": 4},
    {"tp": 2, "ep": 2, "sequence_parallel": False},
    {"pp": 2},
    {"dp_shard": 2, "pp": 2, "schedule": "zbv"},
    {"dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2, "ep": 4},
]
KINDS = {"experts": {}, "tied, routers charged": {"tied": True, "balance": "loss"}}


def recipe(further=1, *edits, kind="experts", **parallel):
    def lay_out(spec, modules, plan):
        spec.declare(modules, plan)
        for edit in edits:
            edit(modules, plan)

    return replace(laid_out(small_deepseek_v3(further=further, **KINDS[kind]), **parallel), layouts=lay_out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_it_is_right(layout, kind):
    report = check(recipe(kind=kind, **layout), "mine")
    if KINDS[kind].get("tied") and layout.get("schedule") == "zbv":  # the one that cannot be run
        assert [problem.where for problem in report.problems] == ["model.tied"]
        return
    assert report.problems == []
    assert report.right
    assert report.typed


def rows(config):
    return {(row.module, row.what, row.axis): row for row in check(config, "mine", lambda dims: (0,)).traffic}


@pytest.mark.parametrize("layout", [{"tp": 2}, {"cp": 2}, {"tp": 2, "ep": 2}], ids=str)
def test_its_block_sends_what_the_last_block_sends(layout):
    """Of two blocks the last alone has experts; attention they have alike, in one row."""
    found = rows(recipe(**layout))
    mine = {(module, *what): row for (module, *what), row in found.items() if module.startswith("further.block.")}
    assert mine
    for (module, *what), row in mine.items():
        inside = module.removeprefix("further.block.")
        alike = next(blocks for blocks in ("blocks.1", "blocks.0-1") if (f"{blocks}.{inside}", *what) in found)
        other = found[f"{alike}.{inside}", *what]
        blocks = 2 if alike == "blocks.0-1" else 1
        assert (row.forward, blocks * row.sent_forward) == (other.forward, other.sent_forward)
        assert (row.backward, blocks * row.sent_backward) == (other.backward, other.sent_backward)


def test_nothing_is_sent_for_its_projection():
    found = rows(recipe(tp=2))
    assert not any(module in ("further", "further.projection") for module, *_ in found)
    plain = rows(recipe(0, tp=2))
    for key in (("embedding", "output", "tp"), ("head", "x", "tp")):
        assert found[key].sent_forward == 2 * plain[key].sent_forward
        assert found[key].sent_backward == 2 * plain[key].sent_backward


@pytest.mark.parametrize(("schedule", "sends"), [("1f1b", True), ("zbv", False)])
def test_the_table_is_summed_over_the_ends_of_a_pipeline(schedule, sends):
    key = ("optimizer", "gradient of embedding.weight", "pp")
    found = rows(recipe(pp=2, schedule=schedule))
    assert (key in found) == sends
    assert key not in rows(recipe(0, pp=2, schedule=schedule))
    if sends:
        assert found[key].sent_backward == 64 * 32 * 4


def test_a_projection_whose_features_are_cut_is_refused():
    """A rank would add products of its own features alone."""
    cut = declares(
        "further.projection",
        state_shardings={"weight": state(S(1))},
        in_src_shardings={"x": activation(S(2))},
        out_src_shardings=activation(R),
    )
    report = check(recipe(1, cut, tp=2), "mine")
    assert any(problem.where.startswith("further.projection") for problem in report.problems)

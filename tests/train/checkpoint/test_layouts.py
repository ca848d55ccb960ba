"""What one layout saved, every other one loads: weights and optimizer state, to the last bit."""

from __future__ import annotations

import pytest
import torch

from tests.marks import first
from tests.parity.experts import small_experts
from tests.parity.harness import global_batch, largest_error, small
from tests.train.checkpoint import programs
from tests.train.checkpoint.layouts import BACKENDS, EIGHT, LAYOUTS, PIPELINES, by_world, configs, on_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

BASE = small()
BATCHES = [global_batch(BASE, seed) for seed in (0, 1)]


def saved_from(layouts, folder, base=BASE):
    """Name of the layout -> its checkpoint, and what was held when it was saved."""
    found = {}
    for named in by_world(configs(base, layouts)).values():
        cases = [(config, str(folder / name)) for name, config in named.items()]
        for _, path in cases:
            (folder / path).mkdir(parents=True)
        parts = on_ranks(cases[0][0], programs.save_after, cases, BATCHES)
        for i, name in enumerate(named):
            found[name] = folder / name / "step-2", programs.whole([part[i] for part in parts])
    return found


def loaded_into(layouts, checkpoint, base=BASE):
    """Name of the layout -> what is held after loading."""
    found = {}
    for named in by_world(configs(base, layouts)).values():
        cases = [(config, str(checkpoint)) for config in named.values()]
        parts = on_ranks(cases[0][0], programs.load_each, cases)
        for i, name in enumerate(named):
            found[name] = programs.whole([part[i] for part in parts])
    return found


def same(mine, true):
    return mine.keys() == true.keys() and all(torch.equal(mine[name], true[name]) for name in true)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return saved_from(LAYOUTS, tmp_path_factory.mktemp("checkpoints"))


@pytest.mark.parametrize("source", first(reversed(LAYOUTS), 3))
def test_every_layout_loads_it_bit_for_bit(saved, source):
    checkpoint, true = saved[source]
    assert len(true) == 4 * len([name for name in true if name.endswith(".weight")])  # mean, square and count of each
    assert {name for name, mine in loaded_into(LAYOUTS, checkpoint).items() if not same(mine, true)} == set()


def test_every_backend_loads_it_and_saves_the_same(saved, tmp_path):
    checkpoint, true = saved["fsdp 2 x tp 2"]
    assert {name for name, mine in loaded_into(BACKENDS, checkpoint).items() if not same(mine, true)} == set()
    for source, (other, kept) in saved_from(BACKENDS, tmp_path).items():
        found = loaded_into({name: LAYOUTS[name] for name in ("one rank", "hsdp 2 x 2")}, other)
        assert all(same(mine, kept) for mine in found.values()), source


def test_a_tied_table_is_kept_once_and_uneven_pieces_are_whole(tmp_path):
    """34 rows: 17 on a tp rank, of which one data rank has 9 and the other 8."""
    base = small(tied=True, hidden=34)
    layouts = {name: LAYOUTS[name] for name in ("fsdp 2 x tp 2", "one rank", "fsdp 2")}
    for checkpoint, true in saved_from(layouts, tmp_path, base).values():
        assert not any(name.startswith("head") for name in true)
        assert {name for name, mine in loaded_into(layouts, checkpoint, base).items() if not same(mine, true)} == set()


EXPERTS = {
    "one rank": {},
    "fsdp 2, ep 2": {"dp_shard": 2, "ep": 2},
    "tp 2": {"tp": 2},
    "full_dtensor, tp 2, ep 2": {"tp": 2, "ep": 2, "backend": "full_dtensor"},
    "fsdp 4, ep 2": {"dp_shard": 4, "ep": 2},
    "hsdp 2 x 2, ep 2": {"dp_replicate": 2, "dp_shard": 2, "ep": 2},
    "cp 2 x tp 2, ep 2": {"cp": 2, "tp": 2, "ep": 2},
    "pp 2 x fsdp 2, ep 2": {"pp": 2, "dp_shard": 2, "ep": 2},
}


def test_experts_and_the_biases_of_their_routers_go_where_they_are_wanted(tmp_path):
    base = small_experts("deepseek", "leaning")
    found = saved_from(EXPERTS, tmp_path, base)
    for source in ("cp 2 x tp 2, ep 2",):
        checkpoint, true = found[source]
        assert sum(name.endswith("choice.bias") for name in true) == 1
        assert {name for name, mine in loaded_into(EXPERTS, checkpoint, base).items() if not same(mine, true)} == set()


@pytest.mark.parametrize("tied", [False, True])
def test_the_stages_of_a_pipeline_keep_it_together(tmp_path, tied):
    """Tied, the table lies on the first stage and on the last, and is kept once."""
    base = small(tied=tied)
    layouts = {"one rank": {}, **PIPELINES}
    for source, (checkpoint, true) in saved_from(layouts, tmp_path, base).items():
        unequal = {name for name, mine in loaded_into(layouts, checkpoint, base).items() if not same(mine, true)}
        assert unequal == set(), source
        assert any(name.startswith("head") for name in true) == (not tied)


@pytest.mark.parametrize("layout", [{"tp": 4}, {"dp_shard": 4}, {"cp": 2}], ids=str)
def test_a_step_after_it_is_the_step_that_was_to_come(saved, layout):
    """Case 42: saved at tp 2; loaded elsewhere, one more step."""
    checkpoint, _ = saved["tp 2 with sequence parallelism"]
    batch = global_batch(BASE, 2)
    true, mine = (
        on_ranks(config, programs.step_from, config, str(checkpoint), batch)
        for config in configs(BASE, {"true": {"tp": 2}, "mine": layout}).values()
    )
    for measured in (0, 1):
        assert mine[0][measured] == pytest.approx(true[0][measured], rel=1e-6)
    updated = [programs.whole([held for _, _, held in parts]) for parts in (mine, true)]
    error, name = largest_error(*updated)
    assert error < 1e-5, f"{name}: {error:.1e}"


@pytest.mark.slow
def test_so_it_is_with_eight_ranks(tmp_path):
    layouts = {**LAYOUTS, **EIGHT}
    for source, (checkpoint, true) in saved_from(EIGHT, tmp_path).items():
        unequal = {name for name, mine in loaded_into(layouts, checkpoint).items() if not same(mine, true)}
        assert unequal == set(), source
    checkpoint, true = saved_from({"one rank": {}}, tmp_path / "one")["one rank"]
    assert all(same(mine, true) for mine in loaded_into(EIGHT, checkpoint).values())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["spmd_types", "full_dtensor", "partial_dtensor"])
def test_so_it_is_from_every_layout_on_every_backend_to_every_other(tmp_path, backend):
    backends = ("spmd_types", "full_dtensor", "partial_dtensor")
    every = {f"{name}, {each}": {**layout, "backend": each} for name, layout in LAYOUTS.items() for each in backends}
    mine = {name: layout for name, layout in every.items() if name.endswith(backend)}
    for source, (checkpoint, true) in saved_from(mine, tmp_path).items():
        unequal = {name for name, found in loaded_into(every, checkpoint).items() if not same(found, true)}
        assert unequal == set(), source

"""A model made small keeps its structure, and few ranks cut it exactly as they cut the great one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import recipes
from meshwright.errors import ConfigError
from meshwright.models.deepseek_v3 import deepseek_v3
from meshwright.models.heads import GroupedHeads
from meshwright.models.qwen3_moe import qwen3_moe
from meshwright.models.small import FEW, alike
from meshwright.train.assemble import run_dims
from meshwright.train.preflight import preflight
from tests.parity.harness import laid_out, small


@given(number=st.integers(1, 200_000), least=st.integers(1, 64))
def test_the_same_few_divide_it(number, least):
    found = alike(number, least)
    assert [few for few in FEW if found % few == 0] == [few for few in FEW if number % few == 0]
    assert found <= number
    assert found < 840 + least


SIZES = {
    *("dim", "layers", "heads", "kv_heads", "head_dim", "hidden", "vocab", "std"),
    *("dense_layers", "experts", "active", "expert_hidden", "groups", "active_groups"),
    *("q_latent", "kv_latent", "nope_dim", "rope_dim", "value_dim"),
}


@pytest.mark.parametrize("name", recipes.names())
def test_a_shipped_model(name):
    spec = recipes.find(name).model
    found = spec.small()
    assert type(found) is type(spec)
    assert found.problems() == []
    assert found.layers == 2
    if isinstance(spec, GroupedHeads):
        assert found.heads // found.kv_heads == spec.heads // spec.kv_heads
    assert [found.tp_copies(tp) for tp in (1, 2, 4, 8)] == [spec.tp_copies(tp) for tp in (1, 2, 4, 8)]
    assert {k: v for k, v in vars(found).items() if k not in SIZES} == {
        k: v for k, v in vars(spec).items() if k not in SIZES
    }
    assert found.vocab <= 128
    assert spec.small(5).layers == min(5, spec.layers)


@pytest.mark.parametrize("few", FEW)
@pytest.mark.parametrize("spec", [qwen3_moe("30b-a3b"), qwen3_moe("debug"), deepseek_v3("671b"), deepseek_v3("debug")])
def test_experts_and_what_is_in_them_divide_over_the_same_ranks(spec, few):
    found = spec.small()
    assert (found.experts % few == 0) is (spec.experts % few == 0)
    assert (found.expert_hidden % few == 0) is (spec.expert_hidden % few == 0)
    assert found.active < found.experts <= 16


def test_some_groups_of_experts_stay_away_in_small_too():
    found = deepseek_v3("671b").small()
    assert (found.groups, found.active_groups) == (4, 2)
    assert found.active < found.active_groups * found.experts // found.groups


def test_first_blocks_without_experts_leave_one_with():
    assert [deepseek_v3("671b").small(layers).dense_layers for layers in (1, 2, 3, 4, 9)] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize("numbers", [{"vocab": 66}, {"heads": 12, "kv_heads": 3, "dim": 48}, {"hidden": 90}], ids=str)
def test_what_the_great_one_refuses_the_small_one_refuses(numbers):
    config = small(**numbers)
    refused = []
    for spec in (config.model, config.model.small()):
        refused.append([tp for tp in (2, 3, 4) if is_refused(laid_out(small(**vars(spec)), tp=tp))])
    assert refused[0] == refused[1] != []


def is_refused(config) -> bool:
    try:
        config.training.length = 48
        preflight(config, run_dims(config).world)
    except ConfigError:
        return True
    return False

"""What a module declares becomes layouts as soon as it is declared."""

from __future__ import annotations

import pytest

from meshwright.core.sharding import LocalMapConfig, ShardingConfig
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition

X = {"dp": S(0), "tp": R}


def test_plain_dicts_become_layouts():
    config = ShardingConfig(
        state_shardings={"weight": X},
        in_src_shardings={"x": X},
        in_dst_shardings={"x": X},
        out_src_shardings=X,
        out_dst_shardings=X,
        local_map=LocalMapConfig(in_grad_shardings={"x": X}),
    )
    assert config.state_shardings["weight"] is SpmdLayout(X)
    assert config.in_src_shardings["x"] is config.in_dst_shardings["x"] is SpmdLayout(X)
    assert config.out_src_shardings is config.out_dst_shardings is SpmdLayout(X)
    assert config.local_map.in_grad_shardings["x"] is SpmdLayout(X)


@pytest.mark.parametrize(
    ("tree", "layouts"),
    [
        ((X, X), (SpmdLayout(X), SpmdLayout(X))),
        ({"y": X, "aux": None}, {"y": SpmdLayout(X), "aux": None}),
        ((X, (None, {"z": X})), (SpmdLayout(X), (None, {"z": SpmdLayout(X)}))),
    ],
)
def test_outputs_are_trees_of_layouts(tree, layouts):
    assert ShardingConfig(out_src_shardings=tree).out_src_shardings == layouts


def test_a_state_may_be_one_thing_at_rest_and_another_in_compute():
    bias = Transition({"tp": I}, {"tp": P})
    assert ShardingConfig(state_shardings={"bias": bias}).state_shardings["bias"] is bias


def test_nothing_is_declared_where_nothing_is_said():
    config = ShardingConfig()
    assert config.state_shardings == {}
    assert config.in_src_shardings is config.in_dst_shardings is None
    assert config.out_src_shardings is config.out_dst_shardings is config.local_map is None


def test_an_input_of_a_region_has_a_gradient_layout_or_none_by_name():
    assert LocalMapConfig(in_grad_shardings={"mask": None}).in_grad_shardings == {"mask": None}


@pytest.mark.parametrize("wrong", [{"tp": "R"}, {"tp": 0}, {0: R}])
def test_what_is_no_type_is_refused(wrong):
    with pytest.raises(SpmdTypeError, match=r"a layout maps axis names to types|the type on axis"):
        ShardingConfig(state_shardings={"weight": wrong})


def test_arguments_enter_as_forward_wants_them():
    """Those of which only the source is declared arrive as they enter."""
    config = ShardingConfig(in_src_shardings={"x": X, "y": X}, in_dst_shardings={"x": {"tp": R}})
    assert config.enters == {"x": SpmdLayout({"tp": R}), "y": SpmdLayout(X)}
    assert ShardingConfig().enters == {}

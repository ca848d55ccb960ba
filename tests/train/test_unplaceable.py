"""A layout that no DTensor has is refused before a process starts, on the backends that would need it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.audit.check import check
from meshwright.errors import ConfigError
from meshwright.spmd import S, SpmdLayout
from meshwright.train.preflight import preflight
from tests.parity.harness import laid_out, small


def turned(spec, modules, plan):
    """The stream of a block cut over tp first, and then over cp."""
    spec.declare(modules, plan)
    turned = SpmdLayout({"dp": S(0), "tp": S(1), "cp": S(1)})
    for block in modules.blocks:
        block.feed_forward_norm.sharding_config.in_dst_shardings = {"x": turned}
        block.feed_forward_norm.sharding_config.out_src_shardings = turned
        block.feed_forward_norm.sharding_config.out_dst_shardings = plan.residual


@pytest.mark.parametrize(("backend", "refused"), [("spmd_types", False), ("full_dtensor", True)])
def test_an_order_that_the_mesh_has_not(backend, refused):
    config = replace(laid_out(small(), cp=2, tp=2, backend=backend), layouts=turned)
    if not refused:
        preflight(config, 4)
        assert check(config).right
        return
    with pytest.raises(ConfigError) as error:
        preflight(config, 4)
    where = {problem.where for problem in error.value.problems}
    assert "blocks.1.feed_forward_norm.sharding_config.in_dst_shardings['x']" in where
    assert all("tp" in problem.what and "cp" in problem.what for problem in error.value.problems)
    assert not check(config).right


def test_tp_alone_does_not_mind_the_order_of_cp():
    preflight(replace(laid_out(small(), cp=2, tp=2, backend="partial_dtensor"), layouts=turned), 4)

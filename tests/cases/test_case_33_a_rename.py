"""A contract that names what is not there is refused at build time, with the list and the nearest name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.backends.parallelize import parallelize
from meshwright.comm.collectives import redistribute
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import set_current_mesh
from meshwright.comm.shapes import shape_view
from meshwright.core.module import Module
from meshwright.core.sharding import ShardingConfig
from meshwright.errors import ConfigError, SpmdTypeError
from meshwright.models.layers import Linear
from meshwright.train.assemble import local_backend
from meshwright.types.kinds import I, R, S

DIMS = ParallelismDims(dp_shard=2, tp=2)
X = {"dp": S(0), "cp": S(1), "tp": S(1)}
WHOLE = {"dp": S(0), "cp": S(1), "tp": R}


class Named(Module):
    """x_BLD[B, L, D], and an optional mask."""

    def forward(self, x_BLD: Tensor, mask: Tensor | None = None) -> Tensor:
        return x_BLD if mask is None else x_BLD * mask


def built(config: Module.Config):
    with torch.device("meta"):
        model = config.build()
    parallelize(model, local_backend(DIMS, 0, shape_view(DIMS, 0)))
    return model


def refused(config: Module.Config) -> str:
    with pytest.raises(ConfigError) as error:
        built(config)
    return str(error.value)


@pytest.mark.parametrize(
    ("given", "nearest"), [("x", "x_BLD"), ("x_BL", "x_BLD"), ("maks", "mask"), ("x_bld", "x_BLD"), ("hidden", None)]
)
def test_an_argument_that_forward_does_not_take(given, nearest):
    message = refused(Named.Config(sharding_config=ShardingConfig(in_src_shardings={given: X})))
    assert f"in_src_shardings[{given!r}]: Named has no argument {given!r}" in message
    assert "one of 'x_BLD', 'mask'" in message
    assert nearest is None or f"did you mean {nearest!r}?" in message


@pytest.mark.parametrize("given", ["wieght", "bais", "scale"])
def test_a_state_that_the_module_does_not_have(given):
    state = {"dp": R, "cp": R, "tp": R}
    config = Linear.Config(in_features=4, out_features=4, bias=True)
    config.sharding_config = ShardingConfig(state_shardings={"weight": state, "bias": state, given: state})
    message = refused(config)
    assert f"Linear has no state {given!r}" in message
    assert "one of 'weight', 'bias'" in message


def test_outputs_that_are_not_built_alike():
    sharding = ShardingConfig(out_src_shardings=(X, X), out_dst_shardings={"y": X})
    assert "out_dst_shardings" in refused(Named.Config(sharding_config=sharding))


def test_all_wrong_names_are_told_at_once():
    sharding = ShardingConfig(
        state_shardings={"gain": X}, in_src_shardings={"x": X, "msk": X}, in_dst_shardings={"y": WHOLE}
    )
    message = refused(Named.Config(sharding_config=sharding))
    assert message.startswith("4 problems")
    assert all(name in message for name in ("'gain'", "'x'", "'msk'", "'y'"))


def test_an_optional_argument_may_be_left_out():
    sharding = ShardingConfig(
        in_src_shardings={"x_BLD": X, "mask": X}, in_dst_shardings={"x_BLD": WHOLE, "mask": WHOLE}
    )
    model = built(Named.Config(sharding_config=sharding))
    x = torch.empty(3, 4, 5, device="meta")
    assert model(x).shape == (3, 8, 5)
    assert model(x, None).shape == (3, 8, 5)
    assert model(x_BLD=x, mask=x).shape == (3, 8, 5)
    assert model(x, mask=x).shape == (3, 8, 5)


@pytest.mark.parametrize(("src", "dst"), [(S(0), R), (I, R)])
def test_a_call_outside_every_mesh_says_how_to_enter_one(src, dst):
    with pytest.raises(SpmdTypeError, match="no mesh is current"):
        redistribute(torch.ones(2), "tp", src=src, dst=dst)
    with set_current_mesh(shape_view(DIMS, 0)):
        redistribute(torch.ones(2, device="meta"), "tp", src=src, dst=dst)
        with pytest.raises(SpmdTypeError, match="did you mean 'tp'"):
            redistribute(torch.ones(2), "tpp", src=src, dst=dst)

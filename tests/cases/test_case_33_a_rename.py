"""A contract that names what is not there is refused at build time, with the list and the nearest name."""

from __future__ import annotations

import keyword
import string

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshwright.backends.parallelize import parallelize
from meshwright.comm.collectives import redistribute
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import set_current_mesh
from meshwright.comm.shapes import mesh, shape_view
from meshwright.core.module import Module
from meshwright.core.sharding import ShardingConfig
from meshwright.errors import ConfigError, SpmdTypeError
from meshwright.models.layers import Linear
from meshwright.train.assemble import local_backend
from meshwright.types.kinds import I, P, R, S
from tests.core.toys import calling, holding
from tests.denotation import local, sample
from tests.ranks import on_ranks

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


NAMES = st.text(string.ascii_lowercase + "_BLD", min_size=2, max_size=8).filter(
    lambda name: name.isidentifier() and not keyword.iskeyword(name) and not hasattr(Module, name) and name != "self"
)


def renamed(name):
    """Near misses of a name, as they are typed: a letter less, two that change places, another case, a part of it."""
    swapped = [name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in range(len(name) - 1)]
    shorter = [name[:i] + name[i + 1 :] for i in range(len(name))]
    return [each for each in {*swapped, *shorter, name.swapcase(), f"{name}s"} if each and each != name]


def taking(arguments, **sharding):
    """The config of a module whose forward takes these arguments, and declares `sharding`."""
    space = {}
    exec(f"def forward(self, {', '.join(f'{name}=None' for name in arguments)}): return {arguments[0]}", space)
    return calling(space["forward"], **sharding)


@settings(max_examples=25)
@given(arguments=st.lists(NAMES, min_size=1, max_size=4, unique=True), data=st.data())
def test_whatever_the_arguments_of_forward_are_called(arguments, data):
    """The error lists what forward takes, and a declaration by those names is accepted."""
    right = data.draw(st.sampled_from(arguments))
    wrong = data.draw(st.sampled_from([name for name in renamed(right) if name not in arguments] or ["other_name"]))
    built(taking(arguments, in_src_shardings={right: X}))
    for field in ("in_src_shardings", "in_dst_shardings"):
        message = refused(taking(arguments, **{"in_src_shardings": {right: X}, field: {wrong: X}}))
        assert f"{field}[{wrong!r}]: Called has no argument {wrong!r}" in message
        assert f"one of {', '.join(map(repr, arguments))}" in message
    if len(right) >= 4 and len(arguments) == 1 and wrong != "other_name":
        assert f"did you mean {right!r}?" in message


@settings(max_examples=25)
@given(
    states=st.dictionaries(NAMES, st.tuples(st.integers(1, 4)), min_size=1, max_size=4),
    buffer=st.booleans(),
    data=st.data(),
)
def test_whatever_the_states_of_a_module_are_called(states, buffer, data):
    state = {"dp": R, "cp": R, "tp": R}
    right = dict.fromkeys(states, state)
    near = [name for name in renamed(data.draw(st.sampled_from(sorted(states)))) if name not in states]
    wrong = data.draw(st.sampled_from(near or ["other_name"]))
    held = {"buffers": states} if buffer else {}

    def holds(**declared):
        return holding({} if buffer else states, **held, state_shardings=declared)

    assert dict(built(holds(**right)).state_dict()).keys() == states.keys()
    message = refused(holds(**{**right, wrong: state}))
    assert f"Holds has no state {wrong!r}" in message
    assert f"one of {', '.join(map(repr, states))}" in message


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


@settings(max_examples=15)
@given(tp=st.integers(1, 4), rows=st.integers(1, 3), length=st.integers(1, 3), width=st.integers(1, 4))
def test_an_optional_argument_may_be_left_out(tp, rows, length, width):
    """Or be None, or given by its name: what comes out is what one device has, of whatever is given."""
    sharding = ShardingConfig(
        in_src_shardings={"x_BLD": X, "mask": X}, in_dst_shardings={"x_BLD": WHOLE, "mask": WHOLE}
    )
    x, mask = sample((rows, length * tp, width), 1), sample((rows, length * tp, width), 2)

    def results(member):
        part, cut = (local({"tp": S(1)}, whole, dims, member.rank) for whole in (x, mask))
        module = member.module
        calls = [module(part), module(part, None), module(x_BLD=part), module(part, mask=cut)]
        return [*calls, module(part, cut), module(mask=cut, x_BLD=part)]

    dims = ParallelismDims(tp=tp)
    for found in on_ranks(dims, Named.Config(sharding_config=sharding), results):
        assert all(torch.equal(each, x) for each in found[:3])
        assert all(torch.equal(each, x * mask) for each in found[3:])


@settings(max_examples=25)
@given(
    axes=st.lists(NAMES, min_size=1, max_size=4, unique=True),
    pair=st.sampled_from([(S(0), R), (I, R), (R, S(0)), (P, R)]),
    data=st.data(),
)
def test_a_call_names_an_axis_of_the_mesh_around_it(axes, pair, data):
    """Outside every mesh it is told how to enter one; inside, which axes there are."""
    src, dst = pair
    right = data.draw(st.sampled_from(axes))
    wrong = data.draw(st.sampled_from([name for name in renamed(right) if name not in axes] or ["other_name"]))
    x = torch.empty(4)

    def call(axis):
        return redistribute(x, axis, src=src, dst=dst)

    for axis in (right, wrong):
        with pytest.raises(SpmdTypeError, match="no mesh is current"):
            call(axis)
    with set_current_mesh(mesh(**dict.fromkeys(axes, 2))):
        call(right)
        with pytest.raises(SpmdTypeError) as error:
            call(wrong)
    assert f"axis {wrong!r}" in str(error.value)
    assert f"one of {', '.join(map(repr, axes))}" in str(error.value)


@pytest.mark.parametrize(("src", "dst"), [(S(0), R), (I, R)])
def test_a_call_outside_every_mesh_says_how_to_enter_one(src, dst):
    with pytest.raises(SpmdTypeError, match="no mesh is current"):
        redistribute(torch.ones(2), "tp", src=src, dst=dst)
    with set_current_mesh(shape_view(DIMS, 0)):
        redistribute(torch.ones(2, device="meta"), "tp", src=src, dst=dst)
        with pytest.raises(SpmdTypeError, match="did you mean 'tp'"):
            redistribute(torch.ones(2), "tpp", src=src, dst=dst)

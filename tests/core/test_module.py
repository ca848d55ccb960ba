"""A module is an nn.Module that knows what it was built from, what it declares, and its first values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from meshwright.comm.grid import ParallelismDims
from meshwright.core.init import Constant
from meshwright.core.module import Module
from meshwright.core.sharding import ShardingConfig
from meshwright.errors import Problem
from meshwright.types.kinds import R, S
from tests.core.toys import Biased, holding
from tests.ranks import alone, on_meta, on_ranks, refused

SHARDED = {"dp": R, "cp": R, "tp": S(0)}


class Outer(Module):
    """Two parts, one of them declared; itself without states."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        first: Biased.Config
        second: Biased.Config
        forbidden: int = 0

        def problems(self, path, dims):
            if dims.tp != self.forbidden:
                return []
            return [Problem(where=path, what=f"not over {dims.tp}", fix="tp = 1")]

    def __init__(self, config):
        super().__init__()
        self.first, self.second = config.first.build(), config.second.build()

    def forward(self, x):
        return self.second(self.first(x))


def declared(inputs, outputs):
    return Biased.Config(
        inputs=inputs,
        outputs=outputs,
        sharding_config=ShardingConfig(state_shardings={"weight": SHARDED, "bias": SHARDED}),
    )


def test_it_is_a_module_of_torch():
    module = on_meta(declared(2, 4))
    assert isinstance(module, nn.Module)
    assert module.config.inputs == 2
    assert [name for name, _ in module.named_parameters()] == ["weight", "bias"]


def test_before_it_is_parallelized_it_has_no_contract():
    assert on_meta(declared(2, 4)).contract is None


def test_afterwards_it_has_the_one_on_the_axes_that_are_on():
    def program(member):
        return dict(member.module.contract.states["weight"].src)

    assert on_ranks(ParallelismDims(tp=2), declared(2, 4), program) == [{"tp": S(0)}] * 2
    assert alone(declared(2, 4), program) == {}


def test_a_part_that_declares_nothing_has_none():
    config = Outer.Config(first=declared(2, 4), second=declared(4, 2))

    def program(member):
        return [part.contract is None for part in (member.module, member.module.first, member.module.second)]

    assert on_ranks(ParallelismDims(tp=2), config, program) == [[True, False, False]] * 2


def test_first_values_may_be_said_by_the_class_or_by_the_instance():
    class Fixed(Module):
        initial = {"weight": Constant(3.0)}  # noqa: RUF012

        def __init__(self, config):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(2))

    assert alone(Fixed.Config(), lambda member: member.module.weight.tolist()) == [3.0, 3.0]
    assert alone(declared(1, 2), lambda member: member.module.bias.tolist()) == [10.0, 10.0]


def test_a_config_may_refuse_degrees_for_a_reason_of_its_own():
    """What a module cannot split shows in its states too, and is told once; otherwise all parts are heard."""
    parts = {"first": declared(2, 5), "second": declared(5, 3)}
    (own,) = refused(Outer.Config(**parts, forbidden=2), ParallelismDims(tp=2))
    assert (own.where, own.what) == ("Outer", "not over 2")
    assert {problem.where for problem in refused(Outer.Config(**parts), ParallelismDims(tp=2))} == {
        f"{part}.sharding_config.state_shardings['{state}']" for part in parts for state in ("weight", "bias")
    }
    assert refused(Outer.Config(**parts), ParallelismDims()) == ()


def test_it_can_be_made_without_a_config_on_one_device_only():
    """It cannot declare anything, then."""
    module = holding({"weight": (2,)}, state_shardings={"weight": SHARDED})
    assert refused(module, ParallelismDims(tp=2)) == ()

    def without_config(built):
        built.config = None

    (problem,) = refused(module, ParallelismDims(tp=2), before=without_config)
    assert "declares no sharding" in problem.what

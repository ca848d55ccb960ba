"""Recipes with experts, with one fault each: in a layout, in a factor of a gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.parity.planted import written

_BEGIN: Final = """
from dataclasses import dataclass, fields, replace

import torch

from meshwright.models.experts import Experts
from meshwright.models.qwen3_moe import qwen3_moe
from meshwright.train.config import TrainConfig
from meshwright.types.kinds import I, R, S


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.by, None


class ScaledExperts(Experts):
    @dataclass(kw_only=True, slots=True)
    class Config(Experts.Config):
        power: int

    ranks = 1

    def localize(self, place):
        super().localize(place)
        self.ranks = place.axes["ep"].size if "ep" in place.axes else 1

    def _compute(self, rows, offsets):
        return Scaled.apply(super()._compute(rows, offsets), float(self.ranks) ** self.config.power)


def scaled(block, power):
    known = block.feed_forward.routed.experts
    kept = {field.name: getattr(known, field.name) for field in fields(known)}
    block.feed_forward.routed.experts = ScaledExperts.Config(**kept, power=power)


def layouts(spec, modules, plan):
    spec.declare(modules, plan)
"""
_END: Final = """

config = TrainConfig(model=qwen3_moe("debug"), layouts=layouts)
"""
FAULTS: Final = {
    "none": "",
    "not_summed_over_efsdp": """
    experts = modules.blocks[-1].feed_forward.routed.experts
    if plan.experts_spread:
        states = {**experts.sharding_config.state_shardings, "w1": {"dp_replicate": R, "efsdp": I, "ep": S(0)}}
        experts.sharding_config = replace(experts.sharding_config, state_shardings=states)
""",
    "times_ep": """
    scaled(modules.blocks[-1], 1)
""",
    "divided_by_ep": """
    scaled(modules.blocks[-1], -1)
""",
}
"""Name -> what follows on `spec.declare(modules, plan)`."""


def planted(folder: Path, fault: str) -> str:
    """The path of a recipe with that fault."""
    return written(folder, fault, _BEGIN, FAULTS[fault], _END)

"""Recipes with one fault each, planted as a recipe's author could: in `layouts`, in a module, in a patch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_BEGIN: Final = """
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from meshwright.models.layers import RMSNorm
from meshwright.models.layouts import activation, state
from meshwright.models.llama3 import llama3
from meshwright.train import step
from meshwright.train.config import TrainConfig
from meshwright.train.data.packing import IGNORE
from meshwright.types.kinds import I, R


def change(config, **fields):
    config.sharding_config = replace(config.sharding_config, **fields)


def layouts(spec, modules, plan):
    spec.declare(modules, plan)
"""
_END: Final = """

config = TrainConfig(model=llama3("debug"), layouts=layouts)
"""
FAULTS: Final = {
    "none": "",
    "norm_typed_invariant": """
    for block in modules.blocks:
        change(block.attention_norm, state_shardings={"weight": state(I)})
""",
    "norm_typed_replicate": """
    for block in modules.blocks:
        change(block.attention_norm, state_shardings={"weight": state(R)})
""",
    "reduction_dropped_forward": """
    change(modules.blocks[0].attention.wo, out_src_shardings=activation(I))
""",
    "reduction_dropped_backward": """
    for block in modules.blocks:
        change(block.feed_forward, in_src_shardings={"x": activation(R)})
""",
    "own_divisor": """

def local_count(run, batches):
    return sum((batch.labels != IGNORE).sum() for batch in batches).to(run.device)


step.valid_tokens = local_count
""",
    "gradient_averaged": """
    norm = modules.norm
    modules.norm = Averaged.Config(dim=norm.dim, epsilon=norm.epsilon, sharding_config=norm.sharding_config)


class Divided(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad / ctx.by, None


class Averaged(RMSNorm):
    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def localize(self, place):
        self.ranks = place.axes["tp"].size if "tp" in place.axes else 1

    def forward(self, x):
        weight = Divided.apply(self.weight, self.ranks)
        return torch.nn.functional.rms_norm(x, self.weight.shape, weight, self.config.epsilon)
""",
    "frozen": """
    norm = modules.norm
    modules.norm = Frozen.Config(dim=norm.dim, epsilon=norm.epsilon, sharding_config=norm.sharding_config)


class Frozen(RMSNorm):
    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def localize(self, place):
        self.weight.requires_grad_("tp" not in place.axes or place.axes["tp"].size == 1)
""",
    "no_layout": """
    change(modules.norm, in_src_shardings={"y": plan.residual})
""",
    "dies": """
    if dist.is_initialized() and dist.get_rank() == 1:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
""",
    "raises": """
    if dist.is_initialized() and dist.get_rank() == 1:
        1 / 0
""",
    "hangs": """
    if dist.is_initialized():
        import os, pathlib, time
        (pathlib.Path(__file__).parent / f"{os.getpid()}.pid").write_text("")
        time.sleep(600)
""",
}
"""Name -> what follows on `spec.declare(modules, plan)`."""


def planted(folder: Path, fault: str) -> str:
    """The path of a recipe with that fault."""
    return written(folder, fault, _BEGIN, FAULTS[fault], _END)


def written(folder: Path, name: str, begin: str, fault: str, end: str) -> str:
    """The path of a recipe of that name, which is its `layouts` function, what follows on it, and its config."""
    file = folder / f"{name}.py"
    file.write_text(f"{begin.strip()}\n{fault.rstrip()}\n{end}")
    return str(file)

"""AdamW with linear warm-up and cosine decay. Loshchilov and Hutter, arXiv:1711.05101."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from meshwright.train.config import OptimizerConfig


def adamw(params: Iterable[nn.Parameter], config: OptimizerConfig, *, fused: bool = True) -> torch.optim.AdamW:
    """Matrices are decayed, vectors (norms, biases) are not. Frozen parameters are left out.

    fused: the update of a parameter is one kernel; on meta there is none.
    """
    trained = [param for param in params if param.requires_grad]
    groups = [
        {"params": [param for param in trained if param.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [param for param in trained if param.dim() < 2], "weight_decay": 0.0},
    ]
    used = [group for group in groups if group["params"]]
    return torch.optim.AdamW(
        used or groups[:1],  # a pipeline stage may have nothing to train
        lr=config.rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=fused,
    )


def rate_at(step: int, steps: int, config: OptimizerConfig) -> float:
    """The learning rate of step `step` (1 ... steps): up in a line, then down half a cosine to `floor` of the top."""
    if step <= config.warmup:
        return config.rate * step / config.warmup
    done = (step - config.warmup) / max(1, steps - config.warmup)
    return config.rate * (config.floor + (1 - config.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))

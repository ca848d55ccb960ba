"""SwiGLU feed-forward. Shazeer, arXiv:2002.05202."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from meshwright.core.module import Module
from meshwright.models.layers import Linear


class FeedForward(Module):
    """x[..., dim] -> [..., dim]: w2(silu(w1 x) * w3 x)."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """w1, w3: dim -> hidden; w2: hidden -> dim."""

        w1: Linear.Config
        w2: Linear.Config
        w3: Linear.Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.w1 = config.w1.build()
        self.w2 = config.w2.build()
        self.w3 = config.w3.build()

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))

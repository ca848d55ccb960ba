"""A mixture of experts in place of one feed-forward network."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from meshwright.core.module import Module
from meshwright.models.experts import Experts
from meshwright.models.feed_forward import FeedForward
from meshwright.models.router import Router


class Routed(Module):
    """x[B, L, dim] -> (y[B, L, dim], counts[experts] int64, auxiliary [] or None): the experts that the router chose,
    how many tokens chose each, and the loss of unevenness."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """The parts, in the order they run."""

        router: Router.Config
        experts: Experts.Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.router = config.router.build()
        self.experts = config.experts.build()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        weights, chosen, counts, auxiliary = self.router(x)
        return self.experts(x, weights, chosen), counts, auxiliary


class MoE(Module):
    """x[B, L, dim] -> as `Routed`, with the experts that every token passes added to y."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """shared: what every token passes; None: nothing."""

        routed: Routed.Config
        shared: FeedForward.Config | None = None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.routed = config.routed.build()
        self.shared = config.shared.build() if config.shared else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        y, counts, auxiliary = self.routed(x)
        return y if self.shared is None else y + self.shared(x), counts, auxiliary

    def idle(self) -> int:
        """Elements of experts' weights that a token is not multiplied by: those of experts that it does not choose."""
        choice = self.routed.router.choice.config
        return (
            sum(param.numel() for param in self.routed.experts.parameters())
            * (choice.experts - choice.active)
            // choice.experts
        )

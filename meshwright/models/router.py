"""Which experts a token goes to, and with which weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor

from meshwright.comm.grid import ParallelismDims
from meshwright.comm.transport import Transport
from meshwright.core.init import Constant, Init
from meshwright.core.module import Module
from meshwright.core.place import Place
from meshwright.errors import Problem
from meshwright.models.layers import Linear

Score = Literal["softmax", "sigmoid"]
_SCORES: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "softmax": partial(torch.softmax, dim=-1),
    "sigmoid": torch.sigmoid,
}
_SMALLEST: Final = 1e-20
"""Added to a sum of scores that is divided by: sigmoids may all be zeros."""


class Choice(Module):
    """logits[B, L, experts] -> weights[B, L, k], chosen[B, L, k] int64, counts[experts] int64, auxiliary [] or None.

    weights: of the k chosen experts, in the dtype of the logits; scores and their sums are in float32. counts: how many
    of these tokens chose each expert. auxiliary: the loss of unevenness, a sum over tokens as the main loss is.

    Biases without a gradient and groups of experts: DeepSeek-AI, arXiv:2412.19437, section 2.1.2.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """active: experts that a token goes to. groups, active_groups: experts are in so many neighbouring groups of
        equal size, and a token's are in so many of these. normalized: a token's weights are made to add up to 1, before
        they are multiplied by `scale`. biased: a buffer `bias` is added to the scores, for the choice alone. balance:
        weight of the auxiliary loss; 0: there is none."""

        experts: int
        active: int
        score: Score = "softmax"
        groups: int = 1
        active_groups: int = 1
        normalized: bool = True
        scale: float = 1.0
        biased: bool = False
        balance: float = 0.0

        def problems(self, path: str, dims: ParallelismDims) -> list[Problem]:
            size = self.experts // max(self.groups, 1)
            equal = 1 <= self.active_groups <= self.groups and size * self.groups == self.experts
            if equal and 1 <= self.active <= size * self.active_groups and (self.groups == 1 or size > 1):
                return []
            return [
                Problem(
                    where=path,
                    what=f"{self.active} of {self.experts} experts, which are in {self.active_groups} of {self.groups} "
                    "groups",
                    why="groups are equal, of two experts at least where there are several, and those that a token may "
                    "choose from have as many experts as it is to have",
                    fix=f"{path}.groups = 1, {path}.active_groups = 1, {path}.active = 1 to {self.experts}",
                )
            ]

    bias: Tensor | None

    def __init__(self, config: Config) -> None:
        super().__init__()
        bias = torch.empty(config.experts, dtype=torch.float32) if config.biased else None
        self.register_buffer("bias", bias)
        self.axes: tuple[Transport, ...] = ()

    def initializers(self) -> Mapping[str, Init]:
        return {"bias": Constant(0.0)} if self.config.biased else {}

    def localize(self, place: Place) -> None:
        self.axes = place.cut("logits", 1)

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        config = self.config
        scores = _SCORES[config.score](logits.float())
        chosen = self._chosen(scores.detach())
        weights = scores.gather(-1, chosen)
        if config.normalized:
            weights = weights / (weights.sum(-1, keepdim=True) + _SMALLEST)
        weights = (weights * config.scale).to(logits.dtype)
        each = chosen.flatten(1)
        counts = each.new_zeros(each.shape[0], config.experts).scatter_add(1, each, torch.ones_like(each))
        return weights, chosen, counts.sum(0), self._auxiliary(scores, counts) if config.balance else None

    def _chosen(self, scores: Tensor) -> Tensor:
        """scores[B, L, experts] -> the chosen experts [B, L, k]."""
        config = self.config
        if self.bias is not None:
            scores = scores + self.bias
        if config.active_groups < config.groups:
            grouped = scores.unflatten(-1, (config.groups, -1))
            best = grouped.topk(2).values.sum(-1).topk(config.active_groups).indices
            kept = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, True)
            scores = grouped.masked_fill(~kept.unsqueeze(-1), -math.inf).flatten(-2)
        return scores.topk(config.active).indices

    def _auxiliary(self, scores: Tensor, counts: Tensor) -> Tensor:
        """balance * L * sum over sequences and experts of f * p: f = counts * experts / (active * L), p the mean over
        the sequence's L tokens of the share that an expert has of a token's scores; equations 17 to 20 there, times L.

        counts[B, experts]: of each sequence. Where ranks have parts of the sequences, f is of the whole ones and the
        sum over tokens is this rank's part.
        """
        config, length = self.config, scores.shape[1]
        for axis in self.axes:
            counts, length = axis.all_reduce(axis.part(counts)), length * axis.size
        frequency = counts * (config.experts / (config.active * length))
        shares = scores if config.score == "softmax" else scores / (scores.sum(-1, keepdim=True) + _SMALLEST)
        return config.balance * (frequency * shares.sum(1)).sum()


class Router(Module):
    """x[B, L, dim] -> as `Choice`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """gate: dim -> experts."""

        gate: Linear.Config
        choice: Choice.Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = config.gate.build()
        self.choice = config.choice.build()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        weights, chosen, counts, auxiliary = self.choice(self.gate(x))
        return weights.to(x.dtype), chosen, counts, auxiliary

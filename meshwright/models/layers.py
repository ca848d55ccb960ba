"""Linear, Embedding and RMSNorm, written as for one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.core.init import Constant, Init, TruncatedNormal
from meshwright.core.module import Module
from meshwright.core.place import Place


class Linear(Module):
    """y[..., out] = x[..., in] W^T + b, W: [out, in], b: [out]."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """std: standard deviation of the first weights."""

        in_features: int
        out_features: int
        bias: bool = False
        std: float = 0.02

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.out_features, config.in_features))
        self.bias = nn.Parameter(torch.empty(config.out_features)) if config.bias else None

    def initializers(self) -> Mapping[str, Init]:
        return {"weight": TruncatedNormal(self.config.std), "bias": Constant(0.0)}

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class ExactLinear(Linear):
    """A `Linear` that computes in float32 and gives float32, whatever its input and its weights are at that moment."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        """As of `Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.float(), self.weight.float(), None if self.bias is None else self.bias.float())


class Embedding(Module):
    """tokens[...] -> rows of the table [vocab, dim]: [..., dim].

    Where the table's rows are split over ranks, a rank looks up what it holds and gives zeros for the rest; the sum
    over ranks is the embedding.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """std: standard deviation of the first rows."""

        vocab: int
        dim: int
        std: float = 0.02

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab, config.dim))
        self.rows = range(config.vocab)

    def initializers(self) -> Mapping[str, Init]:
        return {"weight": TruncatedNormal(self.config.std)}

    def localize(self, place: Place) -> None:
        self.rows = place.span("weight", 0)

    def forward(self, tokens: Tensor) -> Tensor:
        if len(self.rows) == self.config.vocab:
            return F.embedding(tokens, self.weight)
        elsewhere = (tokens < self.rows.start) | (tokens >= self.rows.stop)
        found = F.embedding((tokens - self.rows.start).masked_fill(elsewhere, 0), self.weight)
        return found.masked_fill(elsewhere.unsqueeze(-1), 0.0)


class RMSNorm(Module):
    """y = x / sqrt(mean(x^2) + epsilon) * weight, over the last dim. Zhang and Sennrich, arXiv:1910.07467."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """epsilon: added to the mean square."""

        dim: int
        epsilon: float = 1e-5

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.dim))

    def initializers(self) -> Mapping[str, Init]:
        return {"weight": Constant(1.0)}

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.config.epsilon)

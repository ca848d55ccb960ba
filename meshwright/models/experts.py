"""Many feed-forward networks, of which each token passes a few. Shazeer et al., arXiv:1701.06538."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.comm.grid import ParallelismDims
from meshwright.core.init import Init, TruncatedNormal
from meshwright.core.module import Module
from meshwright.core.place import Place
from meshwright.errors import Problem, SpmdTypeError, either
from meshwright.models.dispatch import AllToAll, Dispatch, Local
from meshwright.models.grouped import grouped_linear


class Experts(Module):
    """x[B, L, dim], weights[B, L, k], chosen[B, L, k] -> [B, L, dim]: the sum over a token's k chosen experts e of
    weight * w2[e](silu(w1[e] x) * w3[e] x).

    Where the experts are split over an axis, tokens travel to them and back; a route's weight stays with its token.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """hidden: width of one expert. std, std_out: standard deviations of the first weights, std_out of w2."""

        experts: int
        dim: int
        hidden: int
        std: float = 0.02
        std_out: float = 0.02

        def problems(self, path: str, dims: ParallelismDims) -> list[Problem]:
            if self.experts % dims.ep == 0:
                return []
            degrees = [ep for ep in dims.expert_degrees if self.experts % ep == 0]
            return [
                Problem(
                    where=path,
                    what=f"{self.experts} experts do not split over ep {dims.ep}",
                    why="every rank has as many whole experts as any other",
                    fix=f"--parallel.ep {either(degrees)}",
                )
            ]

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(config.experts, config.hidden, config.dim))
        self.w2 = nn.Parameter(torch.empty(config.experts, config.dim, config.hidden))
        self.w3 = nn.Parameter(torch.empty(config.experts, config.hidden, config.dim))
        self.dispatch: Dispatch = Local(config.experts)

    def initializers(self) -> Mapping[str, Init]:
        inside, out = TruncatedNormal(self.config.std), TruncatedNormal(self.config.std_out)
        return {"w1": inside, "w2": out, "w3": inside}

    def localize(self, place: Place) -> None:
        axes = place.states["w1"].sharding(0) if "w1" in place.states else ()
        if len(axes) > 1:
            raise SpmdTypeError(
                Problem(
                    where="w1",
                    what=f"experts are split over {', '.join(axes)}",
                    why="tokens travel to their experts over one axis",
                    fix="S(0) on one axis, ep say, that joins the ranks of these",
                )
            )
        for axis in axes:
            self.dispatch = AllToAll(self.config.experts, place.axes[axis])

    def forward(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        found = self.dispatch(x.flatten(0, -2), chosen.flatten(0, -2), self._compute)
        return (found * weights.flatten(0, -2).unsqueeze(-1)).sum(1).view(x.shape)

    def _compute(self, rows: Tensor, offsets: Tensor) -> Tensor:
        gate = grouped_linear(rows, self.w1, offsets, filled=True)
        hidden = F.silu(gate) * grouped_linear(rows, self.w3, offsets, filled=True)
        return grouped_linear(hidden, self.w2, offsets, filled=True)

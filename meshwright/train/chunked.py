"""Head and loss over parts of the tokens, so that the logits of all tokens never exist at once."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch.nn.functional as F
from torch import Tensor

from meshwright.comm.transport import Transport
from meshwright.core.place import Place
from meshwright.core.sharding import LocalMapConfig, ShardingConfig
from meshwright.errors import ConfigError, Problem
from meshwright.models.layers import Linear
from meshwright.train.loss import cross_entropy, loss_sharding, total
from meshwright.types.layout import SpmdLayout


class ChunkedHead(Linear):
    """x[B, L, dim], labels[B, L] -> the sum over tokens of -log p(label), as a head with `CrossEntropy` behind it.

    Part i of n has the tokens i, n + i, 2n + i ... of every sequence: so each part is cut over ranks as the whole is.
    A run keeps of a part nothing but its loss, and computes its logits again in backward (`compute.set_up`).
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        """chunks: number of parts, which divides the tokens of a sequence that a rank has."""

        chunks: int

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.axes: tuple[Transport, ...] = ()
        self.columns = range(config.out_features)

    def localize(self, place: Place) -> None:
        self.columns = place.span("weight", 0)
        if "weight" in place.states:
            self.axes = tuple(place.axes[axis] for axis in place.states["weight"].sharding(0))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]  # it ends in the loss
        weight, bias = self.weight, self.bias  # as they are in compute: in backward the module has them at rest
        chunks = self.config.chunks
        parts = zip(_parts(x, chunks), _parts(labels, chunks), strict=True)
        return total([self.part(mine, weight, bias, wanted) for mine, wanted in parts])

    def part(self, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        """The sum of the losses of some tokens."""
        return cross_entropy(F.linear(x, weight, bias), labels, self.columns, self.axes)


def _parts(x: Tensor, chunks: int) -> tuple[Tensor, ...]:
    """x[B, L, ...] as `chunks` tensors [B, L / chunks, ...]."""
    return x.unflatten(1, (-1, chunks)).unbind(2)


def chunked(head: Linear.Config, chunks: int) -> ChunkedHead.Config:
    """The head with its loss, in `chunks` parts; what it declares follows from what both declare.

    Errors: `ConfigError` where the head is another module than a `Linear`.
    """
    if type(head) is not Linear.Config:
        raise ConfigError(
            Problem(
                where="compute.loss_chunks" if chunks > 1 else "model.further",
                what=f"{chunks} chunks of a head that is a {head.owner.__name__}",
                why="head and loss are computed as one, and only of a Linear is it known what a part of it computes",
                fix="--compute.loss-chunks 1" if chunks > 1 else "--model.further 0",
            )
        )
    kept = {field.name: getattr(head, field.name) for field in fields(head) if field.name != "sharding_config"}
    sharding = head.sharding_config
    return ChunkedHead.Config(**kept, chunks=chunks, sharding_config=sharding and _chunked_sharding(sharding))


def _chunked_sharding(head: ShardingConfig) -> ShardingConfig:
    """x as the head takes it; its gradient is what the parts leave of it, each rank its own columns' part of a sum."""
    loss = loss_sharding()
    labels = (loss.in_src_shardings or {})["labels"]
    return ShardingConfig(
        state_shardings=head.state_shardings,
        in_src_shardings={**(head.in_src_shardings or {}), "labels": labels},
        in_dst_shardings=head.in_dst_shardings,
        out_src_shardings=loss.out_src_shardings,
        local_map=LocalMapConfig(
            in_grad_shardings={"x": SpmdLayout(head.enters["x"]).dual, "labels": None},
            claims=loss.local_map.claims if loss.local_map else {},
        ),
    )

"""Cross entropy of next tokens, where the vocabulary may be split over ranks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.comm.collectives import all_reduce
from meshwright.comm.grid import DENSE
from meshwright.comm.scope import current_mesh
from meshwright.comm.transport import Transport
from meshwright.core.module import Module
from meshwright.core.place import Place
from meshwright.core.sharding import LocalMapConfig, ShardingConfig
from meshwright.models.decoder import Decoder
from meshwright.models.layouts import activation
from meshwright.train.data.packing import IGNORE
from meshwright.types.axes import CP, DP, TP
from meshwright.types.kinds import I, P, R, S
from meshwright.types.layout import SpmdLayout

LOSS: Final = SpmdLayout({DP: P, CP: P, TP: I})
"""A sum over tokens: each data rank has its own part, tp ranks the same."""


def loss_sharding() -> ShardingConfig:
    """Logits with the vocabulary split over tp, as the head computes them."""
    logits = activation(S(2))
    return ShardingConfig(
        in_src_shardings={"logits": logits, "labels": activation(R)},
        out_src_shardings=LOSS,
        local_map=LocalMapConfig(
            in_grad_shardings={"logits": logits.dual, "labels": None},
            claims={TP: "the rank that has a label's column has its logit, the others have zeros"},
        ),
    )


class CrossEntropy(Module):
    """logits[B, L, vocab], labels[B, L] -> the sum over tokens of -log p(label), in nats and float32.

    Tokens labelled `IGNORE` count nothing. It is a sum: who divides does so once, by the global number of valid tokens.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """vocab: number of tokens in the whole vocabulary."""

        vocab: int

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.axes: tuple[Transport, ...] = ()
        self.columns = range(config.vocab)

    def localize(self, place: Place) -> None:
        self.axes = place.cut("logits", 2)
        degree = {axis.name: axis.size for axis in self.axes}
        index = {axis.name: axis.index for axis in self.axes}
        if self.axes:
            self.columns = place.inputs["logits"].span(2, self.config.vocab, degree, index)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels, self.columns, self.axes)


def cross_entropy(logits: Tensor, labels: Tensor, columns: range, axes: tuple[Transport, ...]) -> Tensor:
    """As `CrossEntropy`. columns: those of the vocabulary that the logits are of; the others are on ranks of `axes`."""
    logits, labels = logits.flatten(0, -2).float(), labels.flatten()
    if not axes:
        return F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")
    return _SplitCrossEntropy.apply(logits, labels, columns, axes)


def roots(model: Decoder, loss: CrossEntropy | None) -> list[Module]:
    """What is called one after the other. loss: None where the head has it in itself."""
    return [model] if loss is None else [model, loss]


def fields_of(model: Decoder) -> int:
    """How many fields of a batch a model learns from."""
    return 4 if model.config.further is None else 6


def token_losses(
    model: Decoder,
    loss: CrossEntropy | None,
    tokens: Tensor,
    labels: Tensor,
    positions: Tensor,
    documents: Tensor,
    *ahead: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """The sum of the token losses of a micro-batch, and what is added to it where something is; by what `roots` are
    called. ahead: where there is a further prediction to learn from, the fields of a batch for it."""
    wanted = {} if loss is not None else {"labels": labels}
    wanted |= dict(zip(("ahead", "ahead_labels"), ahead, strict=False))
    out, charge = charged(model(tokens, positions, documents, **wanted))
    return (out if loss is None else loss(out, labels)), charge


def charged(out: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    """What a decoder returns, and what is added to its loss."""
    return out if isinstance(out, tuple) else (out, None)


def total(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape, from the first to the last."""
    return functools.reduce(torch.add, parts)


def _named(axes: tuple[Transport, ...]) -> list[str]:
    """The axes of the current mesh, if there is one, whose ranks are among those of `axes`."""
    parts = {part for axis in axes for part in DENSE[axis.name]}
    return [axis for axis in current_mesh() or () if axis in DENSE and parts.issuperset(DENSE[axis])]


class _SplitCrossEntropy(torch.autograd.Function):
    """logits[N, vocab / ranks], labels[N] -> sum. Two small all-reduces forward, none backward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, columns: range, axes: tuple[Transport, ...]) -> Tensor:
        top = logits.amax(-1)
        for axis in axes:
            top = axis.all_reduce(top, "max")
        shifted = logits - top.unsqueeze(-1)
        valid = labels != IGNORE
        here = valid & (labels >= columns.start) & (labels < columns.stop)
        column = (labels - columns.start).masked_fill(~here, 0).unsqueeze(-1)
        wanted = shifted.gather(-1, column).squeeze(-1).masked_fill(~here, 0.0)
        for axis in axes:
            wanted = axis.part(wanted)
        exponents = shifted.exp_()
        sums = torch.stack((exponents.sum(-1), wanted))
        for axis in axes:
            sums = axis.all_reduce(sums)
        total, wanted = sums.unbind()
        ctx.save_for_backward(exponents, total, column, here, valid)
        return (total.log() - wanted).masked_fill(~valid, 0.0).sum()

    @staticmethod
    def spmd_typecheck(*, logits: Tensor, labels: Tensor, axes: tuple[Transport, ...]) -> Tensor:
        """A sum over tokens, which all ranks of `axes` have after the sums over the vocabulary."""
        total = logits.exp().sum(-1)
        for axis in _named(axes):
            total = all_reduce(total, axis, src=P, dst=I)
        return total.masked_fill(labels == IGNORE, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        exponents, total, column, here, valid = ctx.saved_tensors
        scale = grads[0] * valid
        grad = exponents * (scale / total).unsqueeze(-1)
        grad.scatter_add_(-1, column, -(scale * here).unsqueeze(-1))
        return grad, None, None, None

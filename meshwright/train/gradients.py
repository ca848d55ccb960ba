"""Gradients between backward and the optimizer: sums that are still owed, the total norm, clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meshwright.backends.base import Backend
from meshwright.backends.parallelize import StateInfo, States
from meshwright.comm.transport import Transport
from meshwright.types.kinds import R, Shard


@dataclass(frozen=True)
class _Trained:
    """owed: axes on which the gradient is still a sum after backward. copies: ranks that hold the same elements."""

    param: nn.Parameter
    owed: tuple[str, ...]
    copies: int


class Gradients:
    """The gradients of one rank's model. Made once, after the parameters have their memory.

    A parameter typed R on an axis has a gradient typed P there: each rank's own contribution. What the storage does
    not sum during backward is summed here, once a step, for many small gradients in one collective.
    """

    def __init__(self, model: nn.Module, backend: Backend, states: States, world: Transport) -> None:
        self.storage, self.world = backend.storage, world
        self.trained = [
            _Trained(param, _owed(states[name], backend), _copies(states[name], backend.dims.base))
            for name, param in model.named_parameters()
            if param.requires_grad
        ]
        on = dict.fromkeys(axis for trained in self.trained for axis in trained.owed)
        self.sums = [(backend.view[axis], [t.param for t in self.trained if axis in t.owed]) for axis in on]

    def finish(self) -> None:
        """After the last backward of a step: make the sums that are owed. A parameter without gradient joins with
        zeros, so that ranks which did not use it call the same collectives."""
        for trained in self.trained:
            if trained.param.grad is None:
                trained.param.grad = torch.zeros_like(trained.param)
        for axis, params in self.sums:
            local = self._local(params)
            for dtype in dict.fromkeys(grad.dtype for grad in local):
                _sum_together([grad for grad in local if grad.dtype == dtype], axis)

    def total_norm(self) -> Tensor:
        """The norm over every element of every gradient, each counted once, however many ranks hold it: float64 []."""
        squares = torch.zeros((), dtype=torch.float64, device=self.trained[0].param.device)
        norms = torch._foreach_norm(self._local([trained.param for trained in self.trained]))
        copies = [1.0 / trained.copies for trained in self.trained]
        squares = (torch.stack(norms).double().square() * squares.new_tensor(copies)).sum()
        return self.world.all_reduce(squares).sqrt()

    def clip(self, norm: Tensor, max_norm: float) -> None:
        """Scale all gradients so that their total norm, now `norm`, is at most `max_norm`."""
        scale = (max_norm / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1.0)
        grads = self._local([trained.param for trained in self.trained])
        torch._foreach_mul_(grads, scale.to(grads[0].dtype))

    def _local(self, params: Iterable[nn.Parameter]) -> list[Tensor]:
        return [self.storage.local(param.grad) for param in params if param.grad is not None]


def _sum_together(parts: Sequence[Tensor], axis: Transport) -> None:
    total = axis.all_reduce(torch.cat([part.reshape(-1) for part in parts]))
    for part, piece in zip(parts, total.split([part.numel() for part in parts]), strict=True):
        part.copy_(piece.view(part.shape))


def _owed(info: StateInfo, backend: Backend) -> tuple[str, ...]:
    return tuple(axis for axis, kind in info.layout.items() if kind is R and axis not in backend.storage.owned)


def _copies(info: StateInfo, degree: Mapping[str, int]) -> int:
    return math.prod(size for axis, size in degree.items() if not isinstance(info.stored.get(axis), Shard))

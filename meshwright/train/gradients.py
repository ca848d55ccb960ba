"""Gradients between backward and the optimizer: sums that are still owed, the total norm, clipping."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn

from meshwright.backends.base import Backend
from meshwright.backends.parallelize import StateInfo, States
from meshwright.comm.transport import Transport
from meshwright.errors import ConfigError, Problem
from meshwright.types.kinds import R


@dataclass(frozen=True)
class _Trained:
    """owed: axes on which the gradient is still a sum after backward. copies: ranks that hold the same elements."""

    param: nn.Parameter
    owed: tuple[str, ...]
    copies: int


Shared = Mapping[str, tuple[int, int]]
"""A parameter that two stages of a pipeline hold -> their pipeline ranks, in the order of the stages."""
NOT_SHARED: Final[Shared] = MappingProxyType({})


class Gradients:
    """The gradients of one rank's model. Made once, after the parameters have their memory.

    A parameter typed R on an axis has a gradient typed P there: each rank's own contribution. What the storage does
    not sum during backward is summed here, once a step, for many small gradients in one collective. So is the gradient
    of a parameter that two pipeline stages hold. device: that of collectives, where it is not that of rest.

    Errors: `ConfigError` where no parameter wants a gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        backend: Backend,
        states: States,
        world: Transport,
        shared: Shared = NOT_SHARED,
        device: torch.device | None = None,
    ) -> None:
        self.storage, self.world, self.pipeline = backend.storage, world, backend.pipeline
        named = {name: param for name, param in model.named_parameters() if param.requires_grad}
        self.trained = [
            _Trained(param, _owed(states[name], backend), _copies(states[name], backend) * (1 + (name in shared)))
            for name, param in named.items()
        ]
        if not self.trained and self.pipeline.size == 1:
            raise ConfigError(
                Problem(where="model", what="every parameter is frozen", fix="requires_grad on those that are to learn")
            )
        on = dict.fromkeys(axis for trained in self.trained for axis in trained.owed)
        self.sums = [(backend.view[axis], [axis in trained.owed for trained in self.trained]) for axis in on]
        self.shared = [(list(named).index(name), holders) for name, holders in shared.items() if name in named]
        once = [1.0 / trained.copies for trained in self.trained]
        rest = next(model.parameters()).device
        self.once = torch.tensor(once, dtype=torch.float64, device=rest)
        self.device = device or rest

    @torch.no_grad()
    def finish(self) -> list[Tensor]:
        """After the last backward of a step: make the sums that are owed; the local gradients at rest, in the order
        of the parameters. One that is missing joins with zeros, so that ranks which did not use the parameter call
        the same collectives."""
        for trained in self.trained:
            if trained.param.grad is None:
                trained.param.grad = torch.zeros_like(trained.param)
        grads = [self.storage.local(trained.param.grad) for trained in self.trained]  # type: ignore[arg-type]
        for axis, owes in self.sums:
            owed = [grad for grad, owing in zip(grads, owes, strict=True) if owing]
            for dtype in dict.fromkeys(grad.dtype for grad in owed):
                _sum_together([grad for grad in owed if grad.dtype == dtype], axis, self.device)
        for place, holders in self.shared:
            self._sum_over_stages(grads[place], holders)
        return grads

    def _sum_over_stages(self, grad: Tensor, holders: tuple[int, int]) -> None:
        """In place, in the order of the stages: the sum has the same bits on both ranks."""
        (first, last), mine = holders, grad.to(self.device)
        if self.pipeline.index == first:
            self.pipeline.send(mine, last)
            grad.copy_(mine + self.pipeline.recv(mine, last))
        elif self.pipeline.index == last:
            other = self.pipeline.recv(mine, first)
            self.pipeline.send(mine, first)
            grad.copy_(other + mine)

    @torch.no_grad()
    def total_norm(self, grads: list[Tensor]) -> Tensor:
        """The norm over every element of every gradient, each counted once, however many ranks hold it: float64 []."""
        norms = torch.stack(torch._foreach_norm(grads)) if grads else self.once  # a stage may have nothing to train
        squares = (norms.double().square() * self.once).sum()
        return self.world.all_reduce(squares.to(self.device)).sqrt()


@torch.no_grad()
def clip(grads: list[Tensor], norm: Tensor, max_norm: float) -> None:
    """Scale all gradients so that their total norm, now `norm`, is at most `max_norm`."""
    scale = (max_norm / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1.0)
    if grads:
        torch._foreach_mul_(grads, scale.to(grads[0]))


def _sum_together(parts: Sequence[Tensor], axis: Transport, device: torch.device) -> None:
    total = axis.all_reduce(torch.cat([part.reshape(-1) for part in parts]).to(device))
    for part, piece in zip(parts, total.split([part.numel() for part in parts]), strict=True):
        part.copy_(piece.view(part.shape))


def _owed(info: StateInfo, backend: Backend) -> tuple[str, ...]:
    return tuple(axis for axis, kind in info.layout.items() if kind is R and axis not in backend.storage.owned)


def _copies(info: StateInfo, backend: Backend) -> int:
    """Among the ranks of its pipeline stage."""
    parts = math.prod(backend.storage.degree[axis] for axis in info.stored.sharded)
    return backend.dims.world // backend.dims.pp // parts

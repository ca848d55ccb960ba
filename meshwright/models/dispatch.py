"""How tokens find the experts that they are for: the seam between a router's choice and the experts' arithmetic.

A dispatcher sorts routes by expert, has the experts compute, and brings every result back to where its token is. Sorts
are stable and what goes out by one index comes back by its inverse, forward and backward, so no sum depends on an
order that differs from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from meshwright.comm.collectives import all_to_all
from meshwright.comm.transport import Transport
from meshwright.types.kinds import V

Compute = Callable[[Tensor, Tensor], Tensor]
"""(rows[M, dim] sorted by expert, offsets[experts] int32: where each expert's rows end) -> [M, dim]."""


class Dispatch(Protocol):
    """x[N, dim], chosen[N, k] int64: k experts for each token; -> [N, k, dim]: what each of them makes of it."""

    def __call__(self, x: Tensor, chosen: Tensor, compute: Compute) -> Tensor: ...


class Local:
    """All experts are here."""

    def __init__(self, experts: int) -> None:
        self.experts = experts

    def __call__(self, x: Tensor, chosen: Tensor, compute: Compute) -> Tensor:
        counts, order, inverse = _sorted(chosen.flatten(), self.experts)
        out = compute(_Picked.apply(x, order, inverse, chosen.shape[1]), _ends(counts))
        return _Picked.apply(out, inverse, order, 1).view(*chosen.shape, x.shape[-1])


class AllToAll:
    """Every rank of an axis has as many of the experts, the first rank the first ones.

    Rows travel to the rank of their expert and back. All ranks exchange, also who has no row: so does their backward.
    """

    def __init__(self, experts: int, axis: Transport) -> None:
        self.experts, self.axis = experts, axis

    def __call__(self, x: Tensor, chosen: Tensor, compute: Compute) -> Tensor:
        counts, order, inverse = _sorted(chosen.flatten(), self.experts)
        send, receive, received = self.axis.deal(counts, chosen.numel())
        sent = _Picked.apply(x, order, inverse, chosen.shape[1])
        rows = _Exchanged.apply(sent, self.axis, receive, send)
        own = self.experts // self.axis.size
        bins = torch.arange(own, device=x.device).repeat(self.axis.size)
        _, here, back = _sorted(bins.repeat_interleave(received.flatten(), output_size=sum(receive)), own)
        out = compute(_Picked.apply(rows, here, back, 1), _ends(received.sum(0)))
        home = _Exchanged.apply(_Picked.apply(out, back, here, 1), self.axis, send, receive)
        return _Picked.apply(home, inverse, order, 1).view(*chosen.shape, x.shape[-1])


def _sorted(bins: Tensor, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """bins[M] -> how many of each there are, the order that sorts them, and its inverse."""
    counts = bins.new_zeros(number).scatter_add(0, bins, torch.ones_like(bins))
    order = bins.argsort(stable=True)
    inverse = torch.zeros_like(order).scatter(0, order, torch.arange(order.shape[0], device=order.device))
    return counts, order, inverse


def _ends(counts: Tensor) -> Tensor:
    return counts.cumsum(0).to(torch.int32)


class _Picked(torch.autograd.Function):
    """x[N, ...] -> [N * copies, ...]: row `order[i] // copies` at place i. inverse: of the permutation `order`.

    The gradient of a row is the sum over its copies in their first order; an index alone would add them in any.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(order, inverse)
        ctx.copies = copies
        return x.index_select(0, order if copies == 1 else order // copies)

    @staticmethod
    def spmd_typecheck(*, x: Tensor, order: Tensor, copies: int) -> Tensor:
        """As of rows picked by an index."""
        return x.index_select(0, order // copies)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,) = grads
        order, inverse = ctx.saved_tensors
        found = _Picked.apply(grad, inverse, order, 1)
        if ctx.copies > 1:
            found = found.unflatten(0, (-1, ctx.copies)).sum(1)
        return found, None, None, None


class _Exchanged(torch.autograd.Function):
    """x[sum(send), ...] -> [sum(receive), ...]: send[i] rows go to rank i of the axis, receive[i] come from it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Transport, receive: list[int], send: list[int]) -> Tensor:
        ctx.axis, ctx.receive, ctx.send = axis, receive, send
        return axis.all_to_all(x, receive, send)

    @staticmethod
    def spmd_typecheck(*, x: Tensor, axis: Transport, receive: list[int], send: list[int]) -> Tensor:
        """A list of rows of each rank's own, before and after.

        Errors: `SpmdTypeError` where `send` does not add up to the rows of x.
        """
        return all_to_all(x, axis.name, src=V, dst=V, input_split_sizes=send, output_split_sizes=receive)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _Exchanged.apply(grads[0], ctx.axis, ctx.send, ctx.receive), None, None, None

"""One optimizer step: micro-batches forward and backward, sums, clip, update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from meshwright.comm.transport import Transport
from meshwright.errors import Problem, RunError
from meshwright.train.assemble import Assembly
from meshwright.train.data import Batch
from meshwright.train.data.packing import IGNORE, look_ahead
from meshwright.train.gradients import clip
from meshwright.train.loss import LOSS, total
from meshwright.types.axes import CP


@dataclass(frozen=True)
class Measured:
    """What a step measured. loss: nats per valid token, over all ranks; grad_norm: before clipping; tokens: of each
    expert, by layer; None where the model has no experts."""

    loss: float
    grad_norm: float
    tokens: list[list[int]] | None = None


def train_step(run: Assembly, batches: Sequence[Batch], *, step: int, rate: float, max_norm: float) -> Measured:
    """One update from the summed gradients of `batches`, this data rank's micro-batches of whole sequences.

    Errors: `RunError` on all ranks alike, before the update, where loss or gradient norm is not finite.
    """
    backend, gradients = run.backend, run.gradients
    run.optimizer.zero_grad(set_to_none=True)
    run.balance.begin()
    if run.model.config.further is not None:
        batches = [look_ahead(batch) for batch in batches]
    batches = [own_part(batch, run.backend.view[CP]) for batch in batches]
    with backend.scope():
        loss = run.passes.backward(batches, valid_tokens(run, batches).clamp(min=1))
        grads = gradients.finish()
        norm = gradients.total_norm(grads)
        shown = over_data(run, over_stages(run, loss))
        measured = Measured(loss=shown.item(), grad_norm=norm.item())
        _demand_finite(measured, step)
        clip(grads, norm, max_norm)
        tokens = run.balance.finish()
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    run.optimizer.step()
    return measured if tokens is None else replace(measured, tokens=tokens.tolist())


def validate(run: Assembly, batches: Iterable[Batch]) -> float:
    """Mean loss in nats per valid token over `batches`, on all ranks alike; every rank gives as many batches.

    Errors: `RunError` on all ranks alike where it is not finite.
    """
    summed = torch.zeros((), device=run.device)
    valid = torch.zeros((), device=run.device, dtype=torch.int64)
    with torch.no_grad(), run.backend.scope():
        for batch in (own_part(whole, run.backend.view[CP]) for whole in batches):
            summed += run.passes.losses(batch)
            valid += (batch.labels != IGNORE).sum().to(run.device)
        summed = over_data(run, over_stages(run, summed))
        valid = over_data(run, valid)
    mean = (summed / valid.clamp(min=1)).item()
    if not math.isfinite(mean):
        raise RunError(
            Problem(
                where="validation",
                what=f"loss {mean}",
                why="the last update left weights that compute nothing finite",
                fix="a lower --optimizer.rate, or a longer --optimizer.warmup",
            )
        )
    return mean


def own_part(batch: Batch, cp: Transport) -> Batch:
    """Of whole sequences the positions of this cp rank: a piece from the head and one from the tail, so that all see
    equally many keys; one piece where the length does not allow two. Labels were shifted before, on the whole."""
    if cp.size == 1:
        return batch
    if batch.tokens.shape[1] % (2 * cp.size):
        return Batch(*(field.chunk(cp.size, 1)[cp.index] for field in batch.fields))
    pieces = (field.chunk(2 * cp.size, 1) for field in batch.fields)
    return Batch(*(torch.cat((piece[cp.index], piece[-1 - cp.index]), 1) for piece in pieces))


def valid_tokens(run: Assembly, batches: Sequence[Batch]) -> Tensor:
    """The number of tokens to predict in the step, over all micro-batches and ranks: int64 []."""
    return over_data(run, total([(batch.labels != IGNORE).sum() for batch in batches]).to(run.device))


def over_data(run: Assembly, value: Tensor) -> Tensor:
    """A sum over tokens, summed over exactly the axes on which the loss is P."""
    on = run.backend.dims.active()
    return run.backend.total(value, [axis for axis in LOSS.partial if axis in on])


def over_stages(run: Assembly, value: Tensor) -> Tensor:
    """A value that the last stage alone has, 0 elsewhere, on all ranks of a pipeline."""
    return run.backend.pipeline.all_reduce(value) if run.backend.pipeline.size > 1 else value


def _demand_finite(measured: Measured, step: int) -> None:
    broken = [name for name in ("loss", "grad_norm") if not math.isfinite(getattr(measured, name))]
    if broken:
        found = ", ".join(f"{name} {getattr(measured, name)}" for name in broken)
        raise RunError(
            Problem(
                where=f"step {step}",
                what=f"{found}; nothing was updated",
                why="both are sums over all ranks: a value that is not finite on one rank shows on every rank",
                fix="a lower --optimizer.rate or a longer --optimizer.warmup; or look at the data of this step",
            )
        )

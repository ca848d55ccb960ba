"""What real ranks do in the tests of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import current_mesh
from meshwright.errors import RunError
from meshwright.train.assemble import Assembly, assemble, connect, local_backend
from meshwright.train.config import TrainConfig
from meshwright.train.data import Batch
from meshwright.train.step import train_step, validate
from tests.parity.harness import rows

CPU = torch.device("cpu")
Spoil = Callable[[Assembly], object]


def on_thread(rank: int, dims: ParallelismDims, config: TrainConfig) -> Assembly:
    """This thread rank's run."""
    view = current_mesh()
    assert view is not None
    return assemble(config, local_backend(dims, rank, view), view["world"], CPU)


def on_process(rank: int, config: TrainConfig) -> Assembly:
    """This process's run, parameters stored by FSDP."""
    return assemble(config, *connect(config, rank, "cpu"), CPU)


def share(run: Assembly, batches: Sequence[Batch]) -> list[Batch]:
    dp = run.backend.view["dp"]
    return [rows(batch, dp.index, dp.size) for batch in batches]


def spoiled(run: Assembly, batches: Sequence[Batch], spoil: Spoil) -> tuple[str, bool, bool]:
    """A step after `spoil`: what was raised, whether all weights are what they were, whether a state was made."""
    spoil(run)
    storage = run.backend.storage
    before = [storage.local(param).clone() for param in run.model.parameters()]
    try:
        train_step(run, share(run, batches), step=7, rate=1.0, max_norm=1.0)
        raised = ""
    except RunError as error:
        raised = str(error)
    after = [storage.local(param) for param in run.model.parameters()]
    same = all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, after, strict=True))
    return raised, same, bool(run.optimizer.state)


def spoiled_process(rank: int, config: TrainConfig, batches: Sequence[Batch], spoil: Spoil, where: int) -> object:
    """As `spoiled`, on rank `where` alone."""
    return spoiled(on_process(rank, config), batches, spoil if rank == where else nothing)


def nothing(run: Assembly) -> None:
    """Leaves the run whole."""


def weight(run: Assembly) -> None:
    """One weight is not a number."""
    _first(run)[0] = torch.nan


def infinite_weight(run: Assembly) -> None:
    """One weight is infinite."""
    _first(run)[0] = torch.inf


def gradient(run: Assembly) -> None:
    """One gradient is infinite, with a finite loss."""
    run.model.blocks["0"].register_forward_pre_hook(lambda module, args: (_Spoil.apply(args[0]), *args[1:]))


class _Spoil(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return torch.full_like(grad, torch.inf)


def _first(run: Assembly) -> Tensor:
    return run.backend.storage.local(run.model.blocks["0"].feed_forward.w1.weight).view(-1)


def validated(rank: int, config: TrainConfig, batches: Sequence[Batch]) -> list[float]:
    """Validation losses before a step, after it, and once more."""
    run = on_process(rank, config)
    first = validate(run, share(run, batches))
    train_step(run, share(run, batches), step=1, rate=1e-3, max_norm=1.0)
    return [first, validate(run, share(run, batches)), validate(run, share(run, batches))]

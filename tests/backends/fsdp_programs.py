"""What real ranks do in the tests of FSDP storage; each returns plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.backends.base import Backend
from meshwright.backends.parallelize import layouts_of, materialise, parallelize
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.transport import Transport
from meshwright.core.init import Constant
from meshwright.core.module import Module
from meshwright.core.sharding import ShardingConfig
from meshwright.errors import ConfigError
from meshwright.train.assemble import Assembly, assemble, connect, on_meta, processes_backend
from meshwright.train.balance import Balance
from meshwright.train.config import TrainConfig
from meshwright.train.data import Batch
from meshwright.train.gradients import Gradients
from meshwright.train.optimizer import adamw
from meshwright.train.passes import Whole
from meshwright.types.kinds import R, SpmdType
from tests.parity.harness import Part, rows, step_part
from tests.ranks import Member

CPU = torch.device("cpu")


class Sums(Module):
    """x[N, 4] -> x w + x u, without the second where `uses_u` is false."""

    initial = {"w": Constant(1.0), "u": Constant(1.0)}  # noqa: RUF012

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """No settings."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(4))
        self.u = nn.Parameter(torch.empty(4))

    def forward(self, x: Tensor, uses_u: bool = True) -> Tensor:
        return x @ self.w + x @ self.u if uses_u else x @ self.w


def sums(dp: SpmdType = R) -> Sums.Config:
    """Both parameters whole over cp and tp, and `dp` over the data axis."""
    state = {"dp": dp, "cp": R, "tp": R}
    return Sums.Config(sharding_config=ShardingConfig(state_shardings={"w": state, "u": state}))


def member(rank: int, dims: ParallelismDims, config: Module.Config) -> Member:
    """A module stored as one."""
    backend, _ = processes_backend(dims, rank, "cpu")
    with torch.device("meta"):
        module = config.build()
    states = parallelize(module, backend)
    backend.store(module, [], layouts_of(states))
    materialise(module, backend, states, CPU, seed=0)
    return Member(rank, module, backend, states, backend.view)


def gradient_of_contributions(
    rank: int, dims: ParallelismDims, passes: int, synced: Sequence[bool], users: Sequence[int]
) -> tuple[list[Tensor], float]:
    """Rank r adds r + 1 to every element of both gradients in each of `passes`; only `users` use the second
    parameter. The local gradients at rest, and their total norm."""
    mine = member(rank, dims, sums())
    everyone = processes_backend(dims, rank, "cpu")[1]
    for i in range(passes):
        mine.backend.storage.accumulate(mine.module, last=synced[i])
        mine.module(torch.full((1, 4), rank + 1.0), rank in users).sum().backward()
    gradients = Gradients(mine.module, mine.backend, mine.states, everyone)
    found = gradients.finish()
    return [grad.clone() for grad in found], gradients.total_norm(found).item()


def summed_after(rank: int, dims: ParallelismDims, synced: Sequence[bool]) -> list[bool]:
    """Whether a sum is at rest after each pass, of which some are `synced`."""
    mine = member(rank, dims, sums())
    there = []
    for last in synced:
        mine.backend.storage.accumulate(mine.module, last=last)
        mine.module(torch.ones(1, 4)).sum().backward()
        there.append(mine.module.w.grad is not None)
    return there


@dataclass
class Kinds:
    """Types by name, at rest and in compute."""

    params: dict[str, tuple[type, tuple[str, ...]]]
    grads: dict[str, tuple[type, tuple[str, ...]]]
    optimizer: dict[str, tuple[type, tuple[str, ...]]]
    seen: dict[str, set[type]]
    outputs: set[type]


def kinds_of_a_step(rank: int, config: TrainConfig, batches: Sequence[Batch]) -> Kinds:
    """Two steps of a model; the types of its tensors afterwards, and of those that its forwards saw."""
    backend, everyone = connect(config, rank, "cpu")
    run = assemble(config, backend, everyone, CPU)
    seen: dict[str, set[type]] = {}
    outputs: set[type] = set()
    for path, module in run.model.named_modules():
        for name in dict(module.named_parameters(recurse=False)):
            _watch(module, name, seen.setdefault(f"{path}.{name}", set()))
        module.register_forward_hook(lambda module, args, out: outputs.update(map(type, _flat(out))))
    for _ in range(2):
        step(run, batches)

    def described(tensor: Tensor) -> tuple[type, tuple[str, ...]]:
        names = tensor.device_mesh.mesh_dim_names if isinstance(tensor, DTensor) else ()
        return type(tensor), tuple(names or ())

    params = dict(run.model.named_parameters())
    optimizer = {
        f"{name}.{key}": described(value)
        for name, param in params.items()
        for key, value in run.optimizer.state[param].items()
        if key != "step"
    }
    return Kinds(
        params={name: (type(param.data), described(param.data)[1]) for name, param in params.items()},
        grads={name: described(param.grad) for name, param in params.items() if param.grad is not None},
        optimizer=optimizer,
        seen=seen,
        outputs=outputs,
    )


def _watch(module: nn.Module, name: str, seen: set[type]) -> None:
    module.register_forward_pre_hook(lambda module, args: seen.add(type(getattr(module, name))))


def _flat(out: Any) -> Sequence[Tensor]:
    return out if isinstance(out, tuple) else (out,)


def step(run: Assembly, batches: Sequence[Batch]) -> Part:
    dp = run.backend.view["dp"]
    return step_part(run, [rows(batch, dp.index, dp.size) for batch in batches])


def steps_of(
    rank: int,
    config: TrainConfig,
    batches: Sequence[Batch],
    steps: int,
    before: Callable[[nn.Module], object] = lambda model: None,
) -> tuple[list[Part], dict[str, bool], bool]:
    """This rank's part of each of `steps`; which parameters want a gradient; whether head and embedding are one."""
    run = assembled(config, *connect(config, rank, "cpu"), before)
    parts = [step(run, batches) for _ in range(steps)]
    trained = {name: param.requires_grad for name, param in run.model.named_parameters()}
    return parts, trained, run.model.head.weight is run.model.embedding.weight


def assembled(
    config: TrainConfig, backend: Backend, everyone: Transport, before: Callable[[nn.Module], object]
) -> Assembly:
    """As `assemble`, with something done to the model first."""
    model, loss = on_meta(config)
    before(model)
    states = parallelize(model, backend)
    parallelize(loss, backend)
    backend.store(model, model.storage_blocks(), layouts_of(states))
    materialise(model, backend, states, CPU, config.training.seed)
    gradients = Gradients(model, backend, states, everyone)
    optimizer = adamw(model.parameters(), config.optimizer)
    passes, balance = Whole(model, loss, backend, CPU), Balance(model, backend, CPU)
    return Assembly(model, loss, passes, backend, states, gradients, balance, optimizer, CPU)


def refused_on_data(rank: int, dims: ParallelismDims, kind: SpmdType) -> str:
    """What parameters of this type on dp meet under FSDP."""
    try:
        member(rank, dims, sums(kind))
    except ConfigError as error:
        return str(error)
    return ""

"""The one place where a run is put together: model, layouts, backend, storage, loss, optimizer."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from meshwright.backends.base import Backend
from meshwright.backends.dtensors import DTensors, FullDTensor, PartialDTensor
from meshwright.backends.erased import Erased
from meshwright.backends.fsdp import Fsdp
from meshwright.backends.parallelize import States, layouts_of, materialise, parallelize
from meshwright.backends.storage import Replicated, StoragePolicy
from meshwright.comm.grid import PIPELINE, WORLD, ParallelismDims
from meshwright.comm.process_groups import ProcessGroups
from meshwright.comm.scope import View
from meshwright.comm.transport import Transport
from meshwright.errors import ConfigError, MeshwrightError, Problem
from meshwright.models.decoder import Decoder
from meshwright.models.spec import dims_of
from meshwright.train import compute as computing
from meshwright.train import fields
from meshwright.train.balance import Balance
from meshwright.train.chunked import chunked
from meshwright.train.config import BackendName, ComputeConfig, TrainConfig
from meshwright.train.gradients import Gradients, Shared
from meshwright.train.loss import CrossEntropy, loss_sharding
from meshwright.train.optimizer import adamw
from meshwright.train.passes import Passes, Whole
from meshwright.train.pipeline import Pipeline
from meshwright.train.stages import ORDERS, even, rank_of, stages_of
from meshwright.types.axes import PP

_AS_AT_REST: Final = ComputeConfig()


@dataclass(frozen=True)
class Assembly:
    """One rank's run. model and loss take plain local tensors; states: the parameters and buffers by name.

    loss: None where the head has it in itself, as with `compute.loss_chunks`.
    """

    model: Decoder
    loss: CrossEntropy | None
    passes: Passes
    backend: Backend
    states: States
    gradients: Gradients
    balance: Balance
    optimizer: torch.optim.Optimizer
    device: torch.device


def run_dims(config: TrainConfig) -> ParallelismDims:
    """The degrees that a recipe asks for.

    Errors: `ConfigError` for a field that holds what it is not for, for numbers of the model that no layout can make
    right, and for a degree below 1.
    """
    mistyped = fields.problems(config)
    if mistyped:
        raise ConfigError(mistyped)
    parallel = config.parallel
    return dims_of(
        config.model,
        dp_replicate=parallel.dp_replicate,
        dp_shard=parallel.dp_shard,
        cp=parallel.cp,
        tp=parallel.tp,
        pp=parallel.pp,
        ep=parallel.ep,
    )


def declared(config: TrainConfig) -> tuple[Decoder.Config, CrossEntropy.Config | None]:
    """The module configs with their shardings; no loss, where the head has it in itself.

    Errors: `ConfigError` where `layouts` fails.
    """
    modules = config.model.modules()
    try:
        config.layouts(config.model, modules, config.parallel.plan)
    except MeshwrightError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            Problem(
                where=f"layouts, {frame.filename}:{frame.lineno}",
                what=f"{type(error).__name__}: {error}",
                why="layouts(spec, modules, plan) attaches a sharding_config to each module's config",
                fix="begin it with spec.declare(modules, plan), then change what is to be changed",
            )
        ) from error
    if config.compute.loss_chunks > 1 or modules.further is not None:  # a further prediction has a loss of its own
        modules.head = chunked(modules.head, config.compute.loss_chunks)
        return modules, None
    return modules, CrossEntropy.Config(vocab=config.model.vocab, sharding_config=loss_sharding())


def on_meta(config: TrainConfig) -> tuple[Decoder, CrossEntropy | None]:
    """Model and loss with global shapes and no memory."""
    modules, loss = declared(config)
    with torch.device("meta"):
        return modules.build(), loss.build() if loss is not None else None


def processes_backend(
    dims: ParallelismDims,
    rank: int,
    device_type: str,
    name: BackendName = "spmd_types",
    compute: ComputeConfig = _AS_AT_REST,
) -> tuple[Backend, Transport]:
    """The backend of that name over torch process groups, and the axis of all ranks."""
    policy = storage_policy(compute, dims)
    stored = dims.dp_replicate * dims.dp_shard > 1 or policy.offload or policy.precision is not None
    groups = ProcessGroups(dims, device_type, stored=stored)
    mesh = groups.stage_mesh
    storage = Fsdp(dims, rank, mesh, policy) if mesh and stored else Replicated(dims, rank, mesh)
    everyone, pipeline = groups.view(WORLD)["world"], groups.view(PIPELINE)[PP]
    view = groups.view(dims.compute)
    if name == "spmd_types":
        return Erased(dims, view, storage, pipeline), everyone
    return DTENSORS[name](dims, view, storage, mesh, pipeline), everyone


def connect(config: TrainConfig, rank: int, device_type: str) -> tuple[Backend, Transport]:
    """The backend that a recipe asks for over torch process groups, and the axis of all ranks.

    Errors: those of `run_dims`.
    """
    return processes_backend(run_dims(config), rank, device_type, config.parallel.backend, config.compute)


def storage_policy(compute: ComputeConfig, dims: ParallelismDims) -> StoragePolicy:
    """What a recipe says of storage.

    A pipeline passes many micro-batches in any order: freed in between, a block would be gathered for each."""
    auto = compute.reshard == "auto"
    frees = compute.reshard == "always" or (auto and dims.pp == 1)
    return StoragePolicy(
        precision=_COMPUTED[compute.precision],
        reduce_precision=_COMPUTED[compute.reduce_precision] or torch.float32,
        frees=frees,
        frees_last=frees and not auto,
        offload=compute.offload,
    )


_COMPUTED: Final[Mapping[str, torch.dtype | None]] = {"float32": None, "bfloat16": torch.bfloat16}


DTENSORS: Final[Mapping[BackendName, type[DTensors]]] = {
    "full_dtensor": FullDTensor,
    "partial_dtensor": PartialDTensor,
}


def local_backend(dims: ParallelismDims, rank: int, view: View) -> Backend:
    """The backend over any view, with every parameter as compute sees it: threads, shapes only, one rank."""
    return Erased(dims, view, Replicated(dims, rank))


def assemble(config: TrainConfig, backend: Backend, world: Transport, device: torch.device) -> Assembly:
    """Errors: `ConfigError` with all problems of the declared layouts."""
    model, loss = on_meta(config)
    cuts = _keep_own_stages(config, model, backend.pipeline)
    states = parallelize(model, backend)
    if loss is not None:
        parallelize(loss, backend)
    backend.store(model, model.storage_blocks(), layouts_of(states))
    materialise(model, backend, states, device, config.training.seed)
    computing.set_up(model, loss, config.compute)
    passes: Passes = Whole(model, loss, backend, device)
    if cuts:
        passes = Pipeline(
            model,
            loss,
            backend,
            device,
            config.parallel.schedule,
            cuts,
            _COMPUTED[config.compute.precision] or torch.float32,
        )
    return Assembly(
        model=model,
        loss=loss,
        passes=passes,
        backend=backend,
        states=states,
        gradients=Gradients(model, backend, states, world, shared(config, backend.pipeline.size), device),
        balance=Balance(model, backend, device),
        optimizer=adamw(model.parameters(), config.optimizer),
        device=device,
    )


def _keep_own_stages(config: TrainConfig, model: Decoder, pipeline: Transport) -> list[range]:
    """The units of every stage, of which `model` keeps this rank's; none where there is no pipeline."""
    if pipeline.size == 1:
        return []
    order = ORDERS[config.parallel.schedule]
    cuts = even(model.costs(), pipeline.size * order.per_rank)
    model.keep([unit for stage in stages_of(pipeline.index, pipeline.size, order) for unit in cuts[stage]])
    return cuts


def shared(config: TrainConfig, ranks: int) -> Shared:
    """The parameters that two stages of a pipeline of `ranks` hold: a table that the last uses too, as a tied head
    does."""
    order = ORDERS[config.parallel.schedule]
    ends = 0, rank_of(ranks * order.per_rank - 1, ranks, order)
    return {"embedding.weight": ends} if config.model.modules().shares_table and ends[1] != 0 else {}

"""The one place where a run is put together: model, layouts, backend, storage, loss, optimizer."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

import torch

from meshwright.backends.base import Backend
from meshwright.backends.erased import Erased
from meshwright.backends.fsdp import Fsdp
from meshwright.backends.parallelize import States, materialise, parallelize
from meshwright.backends.storage import Replicated
from meshwright.comm.grid import WORLD, ParallelismDims
from meshwright.comm.process_groups import ProcessGroups
from meshwright.comm.scope import View
from meshwright.comm.transport import Transport
from meshwright.errors import ConfigError, MeshwrightError, Problem
from meshwright.models.decoder import Decoder
from meshwright.models.layouts import Plan
from meshwright.models.spec import dims_of
from meshwright.train.config import TrainConfig
from meshwright.train.gradients import Gradients
from meshwright.train.loss import CrossEntropy, loss_sharding
from meshwright.train.optimizer import adamw


@dataclass(frozen=True)
class Assembly:
    """One rank's run. model and loss take plain local tensors; states: the parameters and buffers by name."""

    model: Decoder
    loss: CrossEntropy
    backend: Backend
    states: States
    gradients: Gradients
    optimizer: torch.optim.Optimizer
    device: torch.device


def run_dims(config: TrainConfig) -> ParallelismDims:
    """The degrees that a recipe asks for.

    Errors: `ConfigError` for numbers of the model that no layout can make right, and for a degree below 1.
    """
    parallel = config.parallel
    return dims_of(
        config.model,
        dp_replicate=parallel.dp_replicate,
        dp_shard=parallel.dp_shard,
        cp=parallel.cp,
        tp=parallel.tp,
    )


def declared(config: TrainConfig) -> tuple[Decoder.Config, CrossEntropy.Config]:
    """The module configs with their shardings. Errors: `ConfigError` where `layouts` fails."""
    modules = config.model.modules()
    plan = Plan(sequence_parallel=config.parallel.sequence_parallel)
    try:
        config.layouts(config.model, modules, plan)
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
    return modules, CrossEntropy.Config(vocab=config.model.vocab, sharding_config=loss_sharding())


def on_meta(config: TrainConfig) -> tuple[Decoder, CrossEntropy]:
    """Model and loss with global shapes and no memory."""
    modules, loss = declared(config)
    with torch.device("meta"):
        return modules.build(), loss.build()


def processes_backend(dims: ParallelismDims, rank: int, device_type: str) -> tuple[Backend, Transport]:
    """The backend over torch process groups, and the axis of all ranks."""
    groups = ProcessGroups(dims, device_type)
    stored = dims.dp_replicate * dims.dp_shard > 1
    storage = Fsdp(dims, rank, groups.mesh) if stored else Replicated(dims, rank)
    return Erased(dims, groups.view(), storage), groups.view(WORLD)["world"]


def local_backend(dims: ParallelismDims, rank: int, view: View) -> Backend:
    """The backend over any view, with every parameter as compute sees it: threads, shapes only, one rank."""
    return Erased(dims, view, Replicated(dims, rank))


def assemble(config: TrainConfig, backend: Backend, world: Transport, device: torch.device) -> Assembly:
    """Errors: `ConfigError` with all problems of the declared layouts."""
    model, loss = on_meta(config)
    states = parallelize(model, backend)
    parallelize(loss, backend)
    backend.store(model, model.storage_blocks())
    materialise(model, backend, states, device, config.training.seed)
    return Assembly(
        model=model,
        loss=loss,
        backend=backend,
        states=states,
        gradients=Gradients(model, backend, states, world),
        optimizer=adamw(model, config.optimizer),
        device=device,
    )

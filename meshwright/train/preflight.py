"""What can be known to be wrong with a recipe before any process starts: arithmetic and shapes, no memory."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import nn

from meshwright.backends.base import Backend
from meshwright.backends.parallelize import parallelize
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.shapes import shape_view
from meshwright.errors import ConfigError, MeshwrightError, Problem, either
from meshwright.models.decoder import Decoder
from meshwright.train import compute, numbers, stages
from meshwright.train.assemble import DTENSORS, local_backend, on_meta, run_dims
from meshwright.train.config import TrainConfig
from meshwright.train.loss import CrossEntropy, fields_of, roots, token_losses


def preflight(config: TrainConfig, world: int, where: str = "launch.processes") -> None:
    """Compile every contract and run the shapes of one micro-batch through model and loss.

    world: number of ranks; where: what decides it.
    Errors: `ConfigError` with those of the model's numbers and of the degrees; else with all of the other numbers and
    the layouts; else with that of the world, or of the shapes.
    """
    dims = run_dims(config)
    backend = local_backend(dims, 0, shape_view(dims, 0, dims.compute))
    model, loss = on_meta(config)
    problems = arithmetic(config, dims)
    for module in roots(model, loss):
        try:
            parallelize(module, backend)
            problems += unplaceable(config, module)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    dims.check_world(world, where)
    _run_shapes(config, model, loss, backend)


def unplaceable(config: TrainConfig, module: nn.Module) -> list[Problem]:
    """The declared layouts of a parallelized module that the recipe's backend cannot have."""
    backend = DTENSORS.get(config.parallel.backend)
    return backend.problems(module, run_dims(config).compute) if backend is not None else []


def arithmetic(config: TrainConfig, dims: ParallelismDims) -> list[Problem]:
    """Numbers that no run can have, and batches and sequences that do not divide over `dims`."""
    wrong = numbers.problems(config)
    told = {problem.where for problem in wrong}
    config = numbers.mended(config)
    units = len(config.model.modules().blocks) + 2
    pipeline = stages.problems(config.parallel, units, config.training.accumulate)
    together = pipeline or _divisions(config, dims)
    together += [*compute.problems(config), *_experts(config)]
    return [*wrong, *(problem for problem in together if problem.where not in told)]


def _experts(config: TrainConfig) -> list[Problem]:
    """Experts that are to be spread, of a model that has none."""
    if config.parallel.ep == 1 or config.model.modules().load is not None:
        return []
    return [
        Problem(
            where="parallel.ep",
            what=f"{config.parallel.ep} ranks, but {type(config.model).__name__} has no experts",
            why="ep spreads the experts of a mixture over ranks",
            fix="--parallel.ep 1",
        )
    ]


def started(config: TrainConfig) -> list[Problem]:
    """What is wrong with the number of processes that `train` is to start; nothing, where it follows the degrees."""
    processes = config.launch.processes
    if processes is None or not numbers.RANGES["launch.processes"].holds(processes):
        return []
    try:
        run_dims(config).check_world(processes, "launch.processes")
    except ConfigError as error:
        return list(error.problems)
    return []


def check_vocabulary(config: TrainConfig, vocab: int) -> None:
    """Errors: `ConfigError` where the tokenizer has more tokens than the model has rows."""
    if vocab > config.model.vocab:
        raise ConfigError(
            Problem(
                where="model.vocab",
                what=f"{config.model.vocab} rows, but the tokenizer has {vocab} tokens",
                why="every token has a row in the embedding",
                fix=f"--model.vocab {-(-vocab // 128) * 128}",
            )
        )


def _divisions(config: TrainConfig, dims: ParallelismDims) -> list[Problem]:
    training = config.training
    problems = []
    pieces = f"{training.accumulate} micro-batches"
    if dims.pp > 1:
        pieces = f"{training.accumulate} x {config.parallel.filling} micro-batches of pp {dims.pp}"
    parts = dims.dp_replicate * dims.dp_shard * max(1, training.accumulate) * config.parallel.filling
    if training.batch % parts:
        problems.append(
            Problem(
                where="training.batch",
                what=f"{training.batch} sequences do not divide over dp {dims.dp_replicate * dims.dp_shard} x {pieces}",
                why="every rank computes the same number of sequences in every micro-batch",
                fix=f"--training.batch {_multiples(training.batch, parts)}",
            )
        )
    spread = config.parallel.sequence_parallel or dims.ep > 1
    if training.length % dims.cp:
        problems.append(
            Problem(
                where="training.length",
                what=f"{training.length} tokens do not divide over cp {dims.cp}",
                why="every cp rank holds an equal part of the sequence",
                fix=f"--training.length {_multiples(training.length, dims.cp * (dims.tp if spread else 1))}",
            )
        )
    elif spread and training.length % (dims.cp * dims.tp):
        over = f"cp {dims.cp} x tp {dims.tp}" if dims.cp > 1 else f"tp {dims.tp}"
        why, instead = _PARTS["experts" if dims.ep > 1 else "sequence"]
        problems.append(
            Problem(
                where="training.length",
                what=f"{training.length} tokens do not divide over {over}",
                why=why,
                fix=f"--training.length {_multiples(training.length, dims.cp * dims.tp)}, or {instead}",
            )
        )
    each, chunks = training.length // dims.cp, config.compute.loss_chunks
    if training.length % dims.cp == 0 and each % chunks:
        problems.append(
            Problem(
                where="compute.loss_chunks",
                what=f"{each} tokens of a sequence on a rank do not divide into {chunks} chunks",
                why="every chunk has an equal part of each sequence",
                fix=f"--compute.loss-chunks {_divisors(each, chunks)}",
            )
        )
    return problems


_PARTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "sequence": (
            "with sequence_parallel every tp rank holds an equal part of the sequence",
            "--parallel.no-sequence-parallel",
        ),
        "experts": ("with ep every tp rank sends an equal part of the sequence to experts", "--parallel.ep 1"),
    }
)
"""Why tokens are cut over tp -> the reason, and how to do without."""


def _divisors(number: int, near: int) -> str:
    """Those that are nearest to `near`."""
    found = (divisor for divisor in range(1, number + 1) if number % divisor == 0)
    return either(sorted(sorted(found, key=lambda divisor: abs(divisor - near))[:3]))


def _multiples(number: int, of: int) -> str:
    """The nearest legal numbers around `number`."""
    below = number // of * of
    return either(legal for legal in (below, below + of, below + 2 * of) if legal > 0)


def _run_shapes(config: TrainConfig, model: Decoder, loss: CrossEntropy | None, backend: Backend) -> None:
    """One micro-batch through rank 0's part of the model, on meta."""
    training = config.training
    rows = training.batch // (backend.view["dp"].size * training.accumulate)
    length = training.length // backend.view["cp"].size
    tokens = torch.empty(rows, length, dtype=torch.int64, device="meta")
    try:
        with torch.no_grad(), backend.scope():
            token_losses(model, loss, *[tokens] * fields_of(model))
    except MeshwrightError:
        raise
    except Exception as error:
        raise ConfigError(
            Problem(
                where="model",
                what=f"forward fails on shapes alone: {type(error).__name__}: {error}",
                why=f"a micro-batch of {rows} x {length} tokens was run through rank 0's part without values",
            )
        ) from error

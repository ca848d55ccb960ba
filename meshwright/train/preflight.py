"""What can be known to be wrong with a recipe before any process starts: arithmetic and shapes, no memory."""

from __future__ import annotations

import torch

from meshwright.backends.base import Backend
from meshwright.backends.parallelize import parallelize
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.shapes import shape_view
from meshwright.errors import ConfigError, MeshwrightError, Problem
from meshwright.models.decoder import Decoder
from meshwright.train.assemble import local_backend, on_meta, run_dims
from meshwright.train.config import TrainConfig
from meshwright.train.loss import CrossEntropy


def preflight(config: TrainConfig, world: int, where: str = "launch.processes") -> None:
    """Compile every contract and run the shapes of one micro-batch through model and loss.

    world: number of ranks; where: what decides it.
    Errors: `ConfigError` with all problems of numbers and layouts; else with that of the world, or of the shapes.
    """
    dims = run_dims(config)
    backend = local_backend(dims, 0, shape_view(dims, 0))
    model, loss = on_meta(config)
    problems = [*_numbers(config), *_divisions(config, dims)]
    for module in (model, loss):
        try:
            parallelize(module, backend)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    dims.check_world(world, where)
    _run_shapes(config, model, loss, backend)


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


def _numbers(config: TrainConfig) -> list[Problem]:
    training, optimizer = config.training, config.optimizer
    least: dict[str, tuple[float, float]] = {
        "training.steps": (training.steps, 1),
        "training.length": (training.length, 2),
        "training.batch": (training.batch, 1),
        "training.accumulate": (training.accumulate, 1),
        "training.validate_every": (training.validate_every, 1),
        "training.validation_batches": (training.validation_batches, 0),
        "optimizer.warmup": (optimizer.warmup, 0),
        "optimizer.rate": (optimizer.rate, 0),
        "optimizer.weight_decay": (optimizer.weight_decay, 0),
    }
    return [
        Problem(where=name, what=f"{value}", fix=f"--{name.replace('_', '-')} {bound:g} or more")
        for name, (value, bound) in least.items()
        if not value >= bound
    ] + [
        Problem(where=name, what=f"{value}", why="nothing would be learned", fix=f"--{name.replace('_', '-')} above 0")
        for name, value in (("training.max_norm", training.max_norm), ("optimizer.epsilon", optimizer.epsilon))
        if not value > 0
    ]


def _divisions(config: TrainConfig, dims: ParallelismDims) -> list[Problem]:
    training = config.training
    problems = []
    parts = dims.dp_replicate * dims.dp_shard * max(1, training.accumulate)
    if training.batch % parts:
        problems.append(
            Problem(
                where="training.batch",
                what=f"{training.batch} sequences do not divide over dp {dims.dp_replicate * dims.dp_shard}"
                f" x {training.accumulate} micro-batches",
                why="every rank computes the same number of sequences in every micro-batch",
                fix=f"training.batch = one of {_multiples(training.batch, parts)}",
            )
        )
    if config.parallel.sequence_parallel and training.length % dims.tp:
        problems.append(
            Problem(
                where="training.length",
                what=f"{training.length} tokens do not divide over tp {dims.tp}",
                why="with sequence_parallel every tp rank holds an equal part of the sequence",
                fix=f"training.length = one of {_multiples(training.length, dims.tp)},"
                " or --parallel.no-sequence-parallel",
            )
        )
    return problems


def _multiples(number: int, of: int) -> str:
    """The nearest legal numbers around `number`."""
    below = number // of * of
    return ", ".join(str(legal) for legal in (below, below + of, below + 2 * of) if legal > 0)


def _run_shapes(config: TrainConfig, model: Decoder, loss: CrossEntropy, backend: Backend) -> None:
    """One micro-batch through rank 0's part of the model, on meta."""
    training = config.training
    rows = training.batch // (backend.view["dp"].size * training.accumulate)
    tokens = torch.empty(rows, training.length, dtype=torch.int64, device="meta")
    try:
        with torch.no_grad(), backend.scope():
            loss(model(tokens, tokens, tokens), tokens)
    except MeshwrightError:
        raise
    except Exception as error:
        raise ConfigError(
            Problem(
                where="model",
                what=f"forward fails on shapes alone: {type(error).__name__}: {error}",
                why=f"a micro-batch of {rows} x {training.length} tokens was run through rank 0's part without values",
            )
        ) from error

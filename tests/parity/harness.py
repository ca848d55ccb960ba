"""One training step on many ranks, put together again as full tensors, to be held against one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from meshwright.models.llama3 import Llama3
from meshwright.models.qwen3 import Qwen3
from meshwright.parity.batch import rows_of as rows
from meshwright.parity.batch import unequal_batch
from meshwright.parity.compare import error_of
from meshwright.parity.outcome import MAX_NORM, RATE, Outcome, Part, step_part
from meshwright.parity.outcome import together as put_together
from meshwright.parity.step import one_device as on_one_device
from meshwright.parity.step import thread_parts
from meshwright.train.assemble import Assembly
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig
from meshwright.train.data import Batch

__all__ = ["MAX_NORM", "RATE", "Outcome", "Part", "rows", "step_part"]


def small(**numbers: object) -> TrainConfig:
    """A Llama small enough for many ranks: 2 blocks, 8 heads, 4 key/value heads."""
    sizes = {"dim": 32, "layers": 2, "heads": 8, "kv_heads": 4, "hidden": 48, "vocab": 64, "std": 0.2, **numbers}
    return TrainConfig(model=Llama3(**sizes), training=TrainingConfig(steps=10, length=16, batch=4, seed=7))


def small_qwen3(**numbers: object) -> TrainConfig:
    """A Qwen3 of the same size, with wider heads."""
    config = small()
    sizes = {**vars(config.model), "head_dim": 6, **numbers}
    del sizes["scaling"]
    return replace(config, model=Qwen3(**{**sizes, "theta": 1e6, "epsilon": 1e-6}))


def laid_out(config: TrainConfig, **parallel: object) -> TrainConfig:
    return replace(config, parallel=ParallelConfig(**parallel))


def global_batch(config: TrainConfig, seed: int = 0) -> Batch:
    """Rows with different numbers of valid tokens, the last row with none at all; two documents a row."""
    return unequal_batch(config.model.vocab, config.training.batch, config.training.length, seed)


def together(parts: Sequence[Part]) -> Outcome:
    """The full tensors; ranks that hold the same elements must hold the same bits."""
    assert len({(part.loss, part.grad_norm) for part in parts}) == 1, "loss and norm are equal on all ranks"
    outcome = put_together(parts)
    assert not outcome.apart, f"{', '.join(f'{kind} of {name}' for kind, name in outcome.apart)}: replicas differ"
    return outcome


def alone_on_cpu(config: TrainConfig) -> Assembly:
    """The run on one device."""
    return on_one_device(laid_out(config))


def one_device(config: TrainConfig, batches: Sequence[Batch]) -> Outcome:
    return together([step_part(alone_on_cpu(config), batches)])


def on_threads(config: TrainConfig, batches: Sequence[Batch]) -> Outcome:
    return together(thread_parts(config, batches))


def largest_error(
    mine: Mapping[str, Tensor], true: Mapping[str, Tensor], orders: Sequence[float] = (2, torch.inf)
) -> tuple[float, str]:
    """The largest relative error of any tensor, in vector norms of these orders, and whose it is."""
    assert mine.keys() == true.keys()
    errors = {name: error_of(mine[name], true[name], orders) for name in true}
    worst = max(errors, key=errors.__getitem__)
    return errors[worst], worst


ORDERS = {"grads": (2, torch.inf), "updated": (2,)}
"""Adam's first step is g / |g|: an element whose gradient is rounding alone moves by the whole rate either way, on one
device too. So updated weights are compared by norm, gradients by their largest element as well."""


def assert_same(mine: Outcome, true: Outcome, within: float = 1e-5) -> None:
    """Equal first weights to the last bit; loss, norm, every gradient and every updated weight within `within`."""
    assert largest_error(mine.weights, true.weights)[0] == 0.0
    assert abs(mine.loss - true.loss) <= within * true.loss
    assert abs(mine.grad_norm - true.grad_norm) <= within * true.grad_norm
    for kind, orders in ORDERS.items():
        error, name = largest_error(getattr(mine, kind), getattr(true, kind), orders)
        assert error < within, f"{kind} of {name}: relative error {error:.2e}"

"""One training step on many ranks, put together again as full tensors, to be held against one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from meshwright.comm.grid import DENSE, WORLD, ParallelismDims
from meshwright.comm.scope import View, current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.comm.transport import Alone
from meshwright.models.llama3 import Llama3
from meshwright.train.assemble import Assembly, assemble, local_backend, run_dims
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig
from meshwright.train.data import Batch
from meshwright.train.data.packing import IGNORE
from meshwright.train.step import train_step

RATE, MAX_NORM = 1e-3, 0.5


def small(**numbers: object) -> TrainConfig:
    """A Llama small enough for many ranks: 2 blocks, 8 heads, 4 key/value heads."""
    sizes = {"dim": 32, "layers": 2, "heads": 8, "kv_heads": 4, "hidden": 48, "vocab": 64, "std": 0.2, **numbers}
    return TrainConfig(model=Llama3(**sizes), training=TrainingConfig(steps=10, length=16, batch=4, seed=7))


def laid_out(config: TrainConfig, **parallel: object) -> TrainConfig:
    return replace(config, parallel=ParallelConfig(**parallel))


def global_batch(config: TrainConfig, seed: int = 0) -> Batch:
    """Rows with different numbers of valid tokens, the last row with none at all; two documents a row."""
    rows, length = config.training.batch, config.training.length
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(config.model.vocab, (rows, length), generator=generator)
    labels = torch.randint(config.model.vocab, (rows, length), generator=generator)
    for row in range(rows):
        labels[row, length - 3 * row :] = IGNORE
    labels[-1] = IGNORE
    cut = torch.arange(length).expand(rows, length) >= torch.randint(3, length - 3, (rows, 1), generator=generator)
    documents = cut.long()
    positions = torch.arange(length) - documents * (~cut).sum(-1, keepdim=True)
    return Batch(tokens=tokens, labels=labels, positions=positions, documents=documents)


def rows(batch: Batch, index: int, parts: int) -> Batch:
    size = len(batch.tokens) // parts
    cut = slice(index * size, (index + 1) * size)
    return Batch(batch.tokens[cut], batch.labels[cut], batch.positions[cut], batch.documents[cut])


@dataclass
class Outcome:
    """Full tensors by parameter name, before and after one update."""

    loss: float
    grad_norm: float
    weights: dict[str, Tensor] = field(default_factory=dict)
    grads: dict[str, Tensor] = field(default_factory=dict)
    updated: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Part:
    """What one rank holds of an outcome: name -> (spans in the full tensor, values)."""

    loss: float
    grad_norm: float
    spans: dict[str, tuple[Sequence[range], tuple[int, ...]]]
    weights: dict[str, Tensor]
    grads: dict[str, Tensor]
    updated: dict[str, Tensor]


def step_part(run: Assembly, batches: Sequence[Batch]) -> Part:
    storage = run.backend.storage
    params = dict(run.model.named_parameters())

    def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: storage.local(tensor).clone() for name, tensor in tensors.items()}

    weights = copies(params)
    measured = train_step(run, batches, step=1, rate=RATE, max_norm=MAX_NORM)
    trained = {name: param.grad for name, param in params.items() if param.requires_grad}
    spans = {}
    for name in params:
        info = run.states[name]
        each = [info.stored.span(dim, n, storage.degree, storage.index) for dim, n in enumerate(info.shape)]
        spans[name] = each, info.shape
    return Part(measured.loss, measured.grad_norm, spans, weights, copies(trained), copies(params))


def together(parts: Sequence[Part]) -> Outcome:
    """The full tensors; ranks that hold the same elements must hold the same bits."""
    assert len({(part.loss, part.grad_norm) for part in parts}) == 1, "loss and norm are equal on all ranks"
    outcome = Outcome(parts[0].loss, parts[0].grad_norm)
    for kind in ("weights", "grads", "updated"):
        full: dict[str, Tensor] = {}
        for part in parts:
            for name, local in getattr(part, kind).items():
                spans, shape = part.spans[name]
                whole = full.setdefault(name, torch.full(shape, torch.nan, dtype=local.dtype))
                place = whole[tuple(slice(span.start, span.stop) for span in spans)]
                held = ~place.isnan()
                assert torch.equal(place[held], local[held]), f"{kind} of {name}: replicas differ"
                place.copy_(local)
        assert not any(whole.isnan().any() for whole in full.values()), f"{kind}: no rank holds some element"
        setattr(outcome, kind, full)
    return outcome


def alone_on_cpu(config: TrainConfig) -> Assembly:
    """The run on one device."""
    view = View({axis: Alone(axis) for axis in DENSE})
    backend = local_backend(ParallelismDims(), 0, view)
    return assemble(laid_out(config), backend, Alone("world"), torch.device("cpu"))


def one_device(config: TrainConfig, batches: Sequence[Batch]) -> Outcome:
    return together([step_part(alone_on_cpu(config), batches)])


def on_threads(config: TrainConfig, batches: Sequence[Batch]) -> Outcome:
    dims = run_dims(config)

    def rank_part(rank: int) -> Part:
        view = current_mesh()
        assert view is not None
        run = assemble(config, local_backend(dims, rank, view), view["world"], torch.device("cpu"))
        dp = view["dp"]
        return step_part(run, [rows(batch, dp.index, dp.size) for batch in batches])

    return together(run_ranks(dims, rank_part, {**DENSE, **WORLD}))


def largest_error(
    mine: Mapping[str, Tensor], true: Mapping[str, Tensor], orders: Sequence[float] = (2, torch.inf)
) -> tuple[float, str]:
    """The largest relative error of any tensor, in vector norms of these orders, and whose it is."""
    assert mine.keys() == true.keys()
    errors = {name: max(_error(mine[name], true[name], order) for order in orders) for name in true}
    worst = max(errors, key=errors.__getitem__)
    return errors[worst], worst


def _error(mine: Tensor, true: Tensor, order: float) -> float:
    size = torch.linalg.vector_norm(true, order)
    return float(torch.linalg.vector_norm(mine - true, order) / size.clamp(min=1e-30))


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

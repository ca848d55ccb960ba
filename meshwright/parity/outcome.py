"""What one training step leaves, on one rank and put together again as full tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor, nn

from meshwright.errors import Problem, RunError
from meshwright.train.assemble import Assembly
from meshwright.train.data import Batch
from meshwright.train.step import train_step

RATE, MAX_NORM = 1e-3, 0.5
KINDS: Final = ("weights", "loads", "grads", "updated", "means", "squares", "biases")
"""Weights before the update, tokens of each expert, gradients before clipping, weights after it, the optimizer's two
means, and the buffers that are kept: biases that routers choose with."""
_MEANS: Final = {"means": "exp_avg", "squares": "exp_avg_sq"}


@dataclass
class Part:
    """What one rank holds of each parameter and buffer, by kind. spans: where it stands in the full tensor, whose shape
    that has."""

    loss: float
    grad_norm: float
    spans: dict[str, tuple[Sequence[range], tuple[int, ...]]]
    weights: dict[str, Tensor]
    grads: dict[str, Tensor]
    updated: dict[str, Tensor]
    means: dict[str, Tensor] = field(default_factory=dict)
    squares: dict[str, Tensor] = field(default_factory=dict)
    loads: dict[str, Tensor] = field(default_factory=dict)
    biases: dict[str, Tensor] = field(default_factory=dict)

    def place(self, name: str) -> tuple[slice, ...]:
        """Where the rank's values of a parameter stand."""
        return tuple(slice(span.start, span.stop) for span in self.spans[name][0])


@dataclass
class Outcome:
    """Full tensors by parameter, from all ranks.

    apart: kind and parameter of which ranks hold different values for the same elements; parts: what each rank holds.
    """

    loss: float
    grad_norm: float
    weights: dict[str, Tensor] = field(default_factory=dict)
    grads: dict[str, Tensor] = field(default_factory=dict)
    updated: dict[str, Tensor] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)
    squares: dict[str, Tensor] = field(default_factory=dict)
    loads: dict[str, Tensor] = field(default_factory=dict)
    biases: dict[str, Tensor] = field(default_factory=dict)
    apart: set[tuple[str, str]] = field(default_factory=set)
    parts: Sequence[Part] = ()


def step_part(run: Assembly, batches: Sequence[Batch]) -> Part:
    """One step of this rank on its micro-batches."""
    storage = run.backend.storage
    params = dict(run.model.named_parameters())
    trained = {name: param for name, param in params.items() if param.requires_grad}

    def copies(tensors: Mapping[str, Tensor], change: Callable[[Tensor], Tensor] = torch.clone) -> dict[str, Tensor]:
        return {name: change(storage.local(tensor)) for name, tensor in tensors.items()}

    weights = copies(params)
    measured = train_step(run, batches, step=1, rate=RATE, max_norm=MAX_NORM)
    clipped = min(1.0, MAX_NORM / max(measured.grad_norm, torch.finfo(torch.float64).tiny))
    kinds = {
        "weights": weights,
        "grads": copies({name: _grad(param) for name, param in trained.items()}, lambda grad: grad / clipped),
        "updated": copies(params),
    }
    for kind, key in _MEANS.items():
        kinds[kind] = copies({name: run.optimizer.state[param][key] for name, param in trained.items()})
    spans: dict[str, tuple[Sequence[range], tuple[int, ...]]] = {}
    for name in params:
        info = run.states[name]
        each = [info.stored.span(dim, n, storage.degree, storage.index) for dim, n in enumerate(info.shape)]
        spans[name] = each, info.shape
    kinds["loads"] = {
        f"experts of layer {layer}": torch.tensor(tokens, dtype=torch.float64)
        for layer, tokens in zip(run.balance.layers, measured.tokens or (), strict=True)
    }
    kept = run.model.state_dict().keys()
    kinds["biases"] = {name: buffer.clone() for name, buffer in run.model.named_buffers() if name in kept}
    for name, whole in (*kinds["loads"].items(), *kinds["biases"].items()):
        spans[name] = [range(n) for n in whole.shape], tuple(whole.shape)
    return Part(measured.loss, measured.grad_norm, spans, **kinds)


def _grad(param: nn.Parameter) -> Tensor:
    assert param.grad is not None
    return param.grad


def together(parts: Sequence[Part]) -> Outcome:
    """The full tensors; for elements that several ranks hold, the first rank's.

    Errors: `RunError` for elements that no rank holds.
    """
    outcome = Outcome(parts[0].loss, parts[0].grad_norm, parts=parts)
    for kind in KINDS:
        full: dict[str, Tensor] = getattr(outcome, kind)
        filled: dict[str, Tensor] = {}
        for part in parts:
            for name, local in getattr(part, kind).items():
                shape = part.spans[name][1]
                there = full.setdefault(name, torch.zeros(shape, dtype=local.dtype))[part.place(name)]
                held = filled.setdefault(name, torch.zeros(shape, dtype=torch.bool))[part.place(name)]
                if not _same(there[held], local[held]):
                    outcome.apart.add((kind, name))
                there[~held] = local[~held]
                held.fill_(True)
        _demand_whole(kind, filled)
    return outcome


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether all values are equal; nan equals nan."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _demand_whole(kind: str, filled: Mapping[str, Tensor]) -> None:
    gaps = {name: int((~held).sum()) for name, held in filled.items() if not held.all()}
    if gaps:
        raise RunError(
            Problem(
                where=name,
                what=f"{missing} of {filled[name].numel()} elements of its {kind} are held by no rank",
                why="every element of a parameter lies on some rank",
            )
            for name, missing in gaps.items()
        )

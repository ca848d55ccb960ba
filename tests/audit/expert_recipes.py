"""Faults that mixtures of experts have had, planted in the recipes that are shipped: in a layout or in a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from meshwright import recipes
from meshwright.core.init import Constant, Init
from meshwright.core.module import Module
from meshwright.core.place import Place
from meshwright.core.sharding import LocalMapConfig
from meshwright.models.dispatch import AllToAll, Compute, _ends, _Exchanged, _Picked, _sorted
from meshwright.models.experts import Experts
from meshwright.models.grouped import grouped_linear
from meshwright.models.layouts import Plan
from meshwright.models.router import Choice
from meshwright.train.config import ParallelConfig, TrainConfig
from meshwright.types.kinds import SpmdType
from meshwright.types.planner import Transition
from tests.audit.recipes import Edit, at, declares

FAMILIES = ("qwen3_moe", "deepseek_v3")
MIXTURE = "blocks.2.feed_forward.routed"
GATE, CHOICE, EXPERTS = f"{MIXTURE}.router.gate", f"{MIXTURE}.router.choice", f"{MIXTURE}.experts"


def recipe(family: str, *edits: Edit, numbers: Mapping[str, object] | None = None, **parallel: object) -> TrainConfig:
    """The debug recipe of a family under a layout, with edits to what it declares. numbers: other ones of its model."""

    def lay_out(spec: Any, modules: Any, plan: Plan) -> None:
        spec.declare(modules, plan)
        for edit in edits:
            edit(modules, plan)

    config = recipes.find(f"{family}_debug")
    config = replace(config, model=replace(config.model, **(numbers or {})))
    return replace(config, parallel=ParallelConfig(**parallel), layouts=lay_out)


def states(path: str, **layouts: Any) -> Edit:
    """The module at `path` declares other layouts of some states."""

    def edit(modules: Any, plan: Plan) -> None:
        known = at(modules, path).sharding_config.state_shardings
        declares(path, state_shardings={**known, **layouts})(modules, plan)

    return edit


def with_region(path: str, **changes: Any) -> Edit:
    """The region at `path` declares something else of itself."""

    def edit(modules: Any, plan: Plan) -> None:
        known: LocalMapConfig = at(modules, path).sharding_config.local_map
        declares(path, local_map=replace(known, **changes))(modules, plan)

    return edit


def becomes(path: str, other: type[Module], **shardings: SpmdType | Transition) -> Edit:
    """The module at `path` is another, a subclass of what stands there; shardings: of the states that it adds."""

    def edit(modules: Any, plan: Plan) -> None:
        holder, _, name = path.rpartition(".")
        known = at(modules, path)
        kept = {field.name: getattr(known, field.name) for field in fields(known)}
        setattr(at(modules, holder), name, other.Config(**kept))
        if shardings:
            states(path, **shardings)(modules, plan)

    return edit


class Biased(Experts):
    """Experts whose last layer has a bias."""

    @dataclass(kw_only=True, slots=True)
    class Config(Experts.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.b2 = nn.Parameter(torch.empty(config.experts, config.dim))

    def initializers(self) -> Mapping[str, Init]:
        return {**super().initializers(), "b2": Constant(1.0)}

    def _compute(self, rows: Tensor, offsets: Tensor) -> Tensor:
        ones = rows.new_ones(rows.shape[0], 1)
        return super()._compute(rows, offsets) + grouped_linear(ones, self.b2.unsqueeze(-1), offsets, filled=True)


class Divided(torch.autograd.Function):
    """x -> x, its gradient divided."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: int) -> Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def spmd_typecheck(*, x: Tensor, by: int) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] / ctx.by, None


class Averaged(Experts):
    """What goes back through the experts is divided by the ranks of ep, in a function of its own."""

    ranks = 1

    @dataclass(kw_only=True, slots=True)
    class Config(Experts.Config):
        pass

    def localize(self, place: Place) -> None:
        super().localize(place)
        self.ranks = place.axes["ep"].size if "ep" in place.axes else 1

    def _compute(self, rows: Tensor, offsets: Tensor) -> Tensor:
        return Divided.apply(super()._compute(rows, offsets), self.ranks)


class Hooked(Averaged):
    """What goes back through the experts is divided by the ranks of ep, by a hook."""

    def _compute(self, rows: Tensor, offsets: Tensor) -> Tensor:
        out = Experts._compute(self, rows, offsets)
        if out.requires_grad:
            out.register_hook(lambda grad: grad / self.ranks)
        return out


class Scaled(Averaged):
    """What the experts compute is divided by the ranks of ep, and so is what goes back."""

    def _compute(self, rows: Tensor, offsets: Tensor) -> Tensor:
        return Experts._compute(self, rows, offsets) * (1 / self.ranks)


class OwnCounts(Choice):
    """Its charge is of what this rank's part of a sequence chose."""

    @dataclass(kw_only=True, slots=True)
    class Config(Choice.Config):
        pass

    def localize(self, place: Place) -> None:
        """No axis: nothing is summed."""


class UnsummedCounts(Choice):
    """Its charge is of what this rank counted, divided by the length of whole sequences."""

    @dataclass(kw_only=True, slots=True)
    class Config(Choice.Config):
        pass

    def _auxiliary(self, scores: Tensor, counts: Tensor) -> Tensor:
        config, length = self.config, scores.shape[1]
        for axis in self.axes:
            length = length * axis.size
        frequency = counts * (config.experts / (config.active * length))
        return config.balance * (frequency * scores.sum(1)).sum()


class MovesItself(Choice):
    """Its bias moves by what this rank counted."""

    @dataclass(kw_only=True, slots=True)
    class Config(Choice.Config):
        pass

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        weights, chosen, counts, charge = super().forward(logits)
        with torch.no_grad():
            self.bias += 0.01 * torch.sign(counts.double().mean() - counts).to(self.bias.dtype)
        return weights, chosen, counts, charge


class Swapped(AllToAll):
    """What is sent and what is received change places on the way out."""

    def __call__(self, x: Tensor, chosen: Tensor, compute: Compute) -> Tensor:
        return routed(self, x, chosen, compute, out=lambda send, receive: (receive, send))


class BackAsOut(AllToAll):
    """The way back has the numbers of the way out."""

    def __call__(self, x: Tensor, chosen: Tensor, compute: Compute) -> Tensor:
        return routed(self, x, chosen, compute, back=lambda send, receive: (send, receive))


class OneShort(AllToAll):
    """A row for the last rank is left out."""

    def __call__(self, x: Tensor, chosen: Tensor, compute: Compute) -> Tensor:
        def short(send: list[int], receive: list[int]) -> tuple[list[int], list[int]]:
            return [*send[:-1], send[-1] - 1], receive

        return routed(self, x, chosen, compute, out=short)


class Evenly(AllToAll):
    """Each rank is sent as many rows as any other; each expects what was dealt."""

    def __call__(self, x: Tensor, chosen: Tensor, compute: Compute) -> Tensor:
        return routed(self, x, chosen, compute, out=lambda send, receive: (_even(send), receive))


class EvenlyBothWays(AllToAll):
    """Nobody looks at what was dealt."""

    def __call__(self, x: Tensor, chosen: Tensor, compute: Compute) -> Tensor:
        return routed(self, x, chosen, compute, out=lambda send, receive: (_even(send), _even(send)))


def _even(rows: list[int]) -> list[int]:
    return [sum(rows) // len(rows)] * len(rows)


def routed(
    there: AllToAll,
    x: Tensor,
    chosen: Tensor,
    compute: Compute,
    out: Any = lambda send, receive: (send, receive),
    back: Any = lambda send, receive: (receive, send),
) -> Tensor:
    """As `AllToAll`, with the rows (sent, received) on the way out and back as these say."""
    counts, order, inverse = _sorted(chosen.flatten(), there.experts)
    send, receive, received = there.axis.deal(counts, chosen.numel())
    sent, got = out(send, receive)
    rows = _Exchanged.apply(_Picked.apply(x, order, inverse, chosen.shape[1]), there.axis, got, sent)
    own = there.experts // there.axis.size
    bins = torch.arange(own, device=x.device).repeat(there.axis.size)
    _, here, home = _sorted(bins.repeat_interleave(received.flatten(), output_size=sum(receive)), own)
    found = compute(_Picked.apply(rows, here, home, 1), _ends(received.sum(0)))
    sent, got = back(send, receive)
    returned = _Exchanged.apply(_Picked.apply(found, home, here, 1), there.axis, got, sent)
    return _Picked.apply(returned, inverse, order, 1).view(*chosen.shape, x.shape[-1])


def sends_as(dispatch: type[AllToAll]) -> type[Experts]:
    """Experts with that dispatcher."""

    class Sending(Experts):
        @dataclass(kw_only=True, slots=True)
        class Config(Experts.Config):
            pass

        def localize(self, place: Place) -> None:
            super().localize(place)
            if isinstance(self.dispatch, AllToAll):
                self.dispatch = dispatch(self.config.experts, self.dispatch.axis)

    return Sending

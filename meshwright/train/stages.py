"""Which layers stand on which pipeline rank. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from meshwright.errors import Problem

if TYPE_CHECKING:
    from meshwright.train.config import ParallelConfig

Schedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv"]


@dataclass(frozen=True)
class Order:
    """How a schedule lays its stages over ranks. per_rank: stages of a rank; turns: the last stages come back to the
    first rank, in a V, instead of going round in a loop."""

    per_rank: int
    turns: bool = False


ORDERS: Final[Mapping[Schedule, Order]] = MappingProxyType(
    {
        "gpipe": Order(1),
        "1f1b": Order(1),
        "interleaved_1f1b": Order(2),
        "interleaved_zero_bubble": Order(2),
        "zbv": Order(2, turns=True),
    }
)
SPLITS_BACKWARD: Final = frozenset({"interleaved_zero_bubble", "zbv"})
"""Schedules that run the gradients of inputs and those of weights apart."""


def rank_of(stage: int, ranks: int, order: Order) -> int:
    """The pipeline rank that holds a stage."""
    lap, place = divmod(stage, ranks)
    return ranks - 1 - place if order.turns and lap % 2 else place


def stages_of(rank: int, ranks: int, order: Order) -> tuple[int, ...]:
    """The stages of a pipeline rank, in the order they run."""
    return tuple(stage for stage in range(ranks * order.per_rank) if rank_of(stage, ranks, order) == rank)


def even(costs: Sequence[float], parts: int) -> list[range]:
    """Units in order cut into `parts` runs of at least one, so that the dearest run costs as little as can be; of
    those cuts the one whose runs differ least in square."""
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best: list[dict[int, tuple[tuple[float, float], int]]] = [{0: ((0.0, 0.0), 0)}]  # end -> (worst, squares), start
    for part in range(1, parts + 1):
        ends = {}
        for end in range(part, len(costs) - (parts - part) + 1):
            ends[end] = min(
                ((max(worst, sums[end] - sums[start]), squares + (sums[end] - sums[start]) ** 2), start)
                for start, ((worst, squares), _) in best[-1].items()
                if start < end
            )
        best.append(ends)
    cuts = [len(costs)]
    for ends in reversed(best[1:]):
        cuts.append(ends[cuts[-1]][1])
    cuts.reverse()
    return [range(start, end) for start, end in pairwise(cuts)]


def problems(config: ParallelConfig, units: int, accumulate: int) -> list[Problem]:
    """What is wrong with the pipeline of a recipe. units: of the model, that stages are cut from."""
    ranks, order = config.pp, ORDERS[config.schedule]
    if ranks == 1:
        return [
            Problem(
                where=f"parallel.{name}",
                what=f"{getattr(config, name)}, but parallel.pp is 1",
                why="there is no pipeline whose stages could be put in order",
                fix=f"leave out --parallel.{name.replace('_', '-')}, or --parallel.pp 2",
            )
            for name, default in (("schedule", "1f1b"), ("micro_batches", None))
            if getattr(config, name) != default
        ]
    found = []
    if ranks * order.per_rank > units:
        found.append(
            Problem(
                where="parallel.pp",
                what=f"{ranks} ranks with {order.per_rank} stage{'s' * (order.per_rank > 1)} each of "
                f"{config.schedule}, but the model has {units} units",
                why="a stage holds the embedding, a block or the head at least",
                fix=f"--parallel.pp {units // order.per_rank}, or fewer"
                + (", or a schedule with one stage a rank" if order.per_rank > 1 else ""),
            )
        )
    count = accumulate * config.filling
    rounds = max(1, count // ranks)
    if config.filling < 1 or (config.schedule == "1f1b" and count < ranks) or (order.per_rank > 1 and count % rounds):
        found.append(
            Problem(
                where="parallel.micro_batches",
                what=f"{config.micro_batches} x {accumulate} of training.accumulate do not fill pp {ranks} with"
                f" {config.schedule}",
                why="the schedule hands each rank as many micro-batches a round as there are ranks",
                fix=f"--parallel.micro-batches {ranks}",
            )
        )
    return found

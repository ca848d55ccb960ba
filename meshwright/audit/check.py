"""The whole audit: arithmetic, contracts, types of a step on the ranks that can differ, and what is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import nn

from meshwright.audit.condense import BLOCK, Condensed, condensed
from meshwright.audit.report import Report, Traffic, folded
from meshwright.audit.step import RankStep
from meshwright.audit.storage import Stored, edges, loads, numbers, storage, sums, tied
from meshwright.audit.traffic import crossings, in_compute, regions
from meshwright.audit.whole import Calls, passed, path_of
from meshwright.backends.torch_releases import warn_of_untested
from meshwright.comm.grid import BASE, ParallelismDims
from meshwright.errors import ConfigError, MeshwrightError, Problem
from meshwright.train.assemble import run_dims, shared, storage_policy
from meshwright.train.config import TrainConfig
from meshwright.train.loss import roots
from meshwright.train.numbers import mended
from meshwright.train.preflight import arithmetic
from meshwright.train.stages import ORDERS
from meshwright.types.axes import PP


def check(
    config: TrainConfig, recipe: str = "", ranks: Callable[[ParallelismDims], tuple[int, ...]] | None = None
) -> Report:
    """Judge a recipe. recipe: what it is called; ranks: which ranks' steps are followed (default: `corners`).

    All that is wrong is in the report; nothing is raised for it.
    """
    warn_of_untested()
    report = Report(recipe)
    try:
        dims = run_dims(config)
        report.mesh, report.world, report.stages, report.ep = str(dims), dims.world, dims.pp, dims.ep
        report.ranks = dims.shown
        report.uncounted = _UNCOUNTED.get(config.compute.recompute, "")
        report.add(arithmetic(config, dims))
        config = _in_parts(mended(config), dims)
        whole = condensed(config)
        roots = [
            spread
            for path, module in whole.model.named_modules()
            if (own := getattr(module, "config", None)) is not None
            for problem in own.problems(path or type(module).__name__, dims)
            for spread in whole.spread(problem)
        ]
        report.add(roots)
        if not roots:
            report.add(_types(config, dims, report, (ranks or corners)(dims), whole))
    except MeshwrightError as error:
        report.add(error.problems)
    return report


_UNCOUNTED: Final[Mapping[str, str]] = {
    "full": "what blocks send again in backward, where they are computed anew",
    "selective": "what every second block sends again in backward, where it is computed anew",
}
"""By `compute.recompute`."""


def corners(dims: ParallelismDims) -> tuple[int, ...]:
    """The first rank, one that differs from it on each axis, and the last. Of a pipeline the first stage: a module has
    the same types in any."""
    found, stride = [0], 1
    for axis in reversed(BASE):
        if dims.base[axis] > 1 and axis != PP:
            found.append(stride)
        stride *= dims.base[axis]
    return tuple(sorted({*found, dims.world // dims.pp - 1}))


def _rows(config: TrainConfig, dims: ParallelismDims) -> int:
    """Sequences of a data rank in a micro-batch; one, where they do not divide."""
    ranks = dims.dp_replicate * dims.dp_shard
    return max(1, config.training.batch // (ranks * _times(config)))


def _times(config: TrainConfig) -> int:
    """Micro-batches of a step."""
    return max(1, config.training.accumulate * config.parallel.filling)


def _length(config: TrainConfig, dims: ParallelismDims) -> int:
    """Tokens of a sequence, up to a number that divides."""
    parts = dims.cp * (dims.tp if config.parallel.sequence_parallel or dims.ep > 1 else 1)
    return max(1, -(-config.training.length // parts)) * parts


def _in_parts(config: TrainConfig, dims: ParallelismDims) -> TrainConfig:
    """The recipe, its loss over all tokens where the tokens do not divide into its chunks."""
    if _length(config, dims) // dims.cp % config.compute.loss_chunks == 0:
        return config
    return replace(config, compute=replace(config.compute, loss_chunks=1))


def _whole_batch(config: TrainConfig, dims: ParallelismDims) -> tuple[int, int]:
    return _rows(config, dims) * dims.dp_replicate * dims.dp_shard, _length(config, dims)


def _types(
    config: TrainConfig, dims: ParallelismDims, report: Report, ranks: Sequence[int], whole: Condensed
) -> list[Problem]:
    """The problems of a step on each of `ranks`, by module; notes the traffic."""
    found: list[Problem] = []
    times = _times(config)
    crossing = passed(whole.model, whole.loss, *_whole_batch(config, dims))
    finished = []
    for number, rank in enumerate(ranks):
        try:
            step = RankStep(config, dims, rank, crossing, found.append)
        except ConfigError as error:
            return [*found, *(each for problem in error.problems for each in whole.spread(problem))]
        finished.append(step.judge(_rows(config, dims), _length(config, dims) // dims.cp))
        report.trusted += [each for each in step.believed() if each not in report.trusted]
        if number == 0:
            policy = storage_policy(config.compute, dims)
            stored = Stored(step.condensed, step.states, dims)
            rows = [
                *(
                    row
                    for root in roots(step.model, step.loss)
                    for row in crossings(root, step.states, step.audit, crossing, times, policy.precision)
                ),
                *regions(step.meter, times),
                *storage(stored, times, policy),
                *_edges(config, step, crossing, dims, times, policy.precision),
                *sums(stored),
                *(row for name in shared(config, dims.pp) for row in tied(stored, name, dims)),
                *loads(stored),
                *numbers(dims),
            ]
            report.traffic = folded(replace(row, module=at) for row in rows for at in step.condensed.places(row.module))
    report.judged, report.typed = tuple(ranks), all(finished)
    return sorted(found, key=_by_module(whole.model))


def _edges(
    config: TrainConfig,
    step: RankStep,
    crossing: Calls,
    dims: ParallelismDims,
    times: int,
    precision: torch.dtype | None,
) -> Iterator[Traffic]:
    """The stream goes on as the last norm finds it."""
    contract = step.model.norm.contract
    if contract is not None:
        stages = ORDERS[config.parallel.schedule].per_rank
        change = contract.inputs["x"]
        stream = in_compute(crossing["norm"][0].inputs["x"], precision)
        yield from edges(stream, change.src, step.audit.view, dims, times * stages)


def _by_module(model: nn.Module) -> Callable[[Problem], tuple[int, int, int]]:
    """A key that sorts problems as the modules of the run stand, blocks by their number."""
    tops = {name: place for place, (name, _) in enumerate(model.named_children())}
    inner: dict[str, int] = {}
    for place, named in enumerate(model.named_modules()):
        inner.setdefault(BLOCK.sub("", path_of(*named)), place)

    def key(problem: Problem) -> tuple[int, int, int]:
        path = _module(problem)
        number = BLOCK.match(path)
        return (
            tops.get(path.partition(".")[0], len(tops)),
            int(number[1]) if number else -1,
            inner.get(BLOCK.sub("", path), len(inner)),
        )

    return key


def _module(problem: Problem) -> str:
    """The path of the module that a problem is about."""
    return problem.where.partition(".sharding_config")[0].partition(".forward: ")[0]

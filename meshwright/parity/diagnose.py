"""From an outcome that is off to the law by which its first wrong tensor is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from torch import Tensor

from meshwright.comm.grid import BASE, ParallelismDims
from meshwright.parity import laws
from meshwright.parity.compare import WITHIN, Off
from meshwright.parity.laws import Held, Law
from meshwright.parity.outcome import Outcome
from meshwright.parity.parts import of_data_ranks, of_micro_batches
from meshwright.parity.shapes import ACCUMULATE, Shapes
from meshwright.train.assemble import run_dims
from meshwright.train.config import TrainConfig
from meshwright.types.axes import TP_COPY, TP_KV

MICRO: Final = "number of micro-batches"
_CALLED: Final = {TP_KV: "tp", TP_COPY: "tp"}
NO_LAW: Final = Law("no law that is known")
FORWARD: Final = Law("no law that is known; forward computes something else, `meshwright check` names the op")


def law_of(off: Off, mine: Outcome, true: Outcome, recipe: TrainConfig, small: TrainConfig, shapes: Shapes) -> Law:
    """recipe: as it was read; small: its run in this layout, that `shapes` made of it."""
    found = next((law for law in _laws(off, mine, true, recipe, small, shapes) if law is not None), None)
    return found or (NO_LAW if math.isclose(mine.loss, true.loss, rel_tol=WITHIN) else FORWARD)


def _laws(
    off: Off, mine: Outcome, true: Outcome, recipe: TrainConfig, small: TrainConfig, shapes: Shapes
) -> Iterator[Law | None]:
    factors = _factors(run_dims(small), small.parallel.filling)
    if not off.name:
        yield _of_number(off.kind, mine, true, factors)
        return
    if off.name not in getattr(mine, off.kind):
        yield Law("no gradient: not trained", 0.0)
        return
    found, right = _changed(off.kind, off.name, mine), _changed(off.kind, off.name, true)
    held = _held(off.kind, off.name, mine, run_dims(small))
    if (off.kind, off.name) in mine.apart:
        yield laws.unsummed(held, right)
    else:
        yield laws.scaled(found, right, factors)
    yield laws.of_some_ranks(held, right)
    if off.kind == "grads" and (off.kind, off.name) not in mine.apart:
        yield laws.weighted(found, of_micro_batches(recipe, shapes, off.name), "micro-batch", "micro-batches")
        yield laws.weighted(found, of_data_ranks(recipe, small, shapes, off.name), "data rank", "data ranks")
    if (off.kind, off.name) in mine.apart:
        yield Law("ranks that should hold the same values do not")


def _of_number(kind: str, mine: Outcome, true: Outcome, factors: dict[str, int]) -> Law | None:
    values = {getattr(part, kind) for part in mine.parts}
    right = getattr(true, kind)
    if len(values) > 1:
        return Law("ranks that should find the same number do not")
    ratio = getattr(mine, kind) / right if right else math.inf
    return Law(laws.words(ratio, factors), ratio) if math.isfinite(ratio) and ratio else Law("not a number")


def _factors(dims: ParallelismDims, filling: int) -> dict[str, int]:
    degrees = {axis: getattr(dims, axis) for axis in ("dp_replicate", "dp_shard", "cp", "tp", "pp")}
    return {axis: degree for axis, degree in degrees.items() if degree > 1} | {MICRO: ACCUMULATE * filling}


def _changed(kind: str, name: str, outcome: Outcome) -> Tensor:
    """Of an updated weight the update: the weight itself hides it."""
    values: Tensor = getattr(outcome, kind)[name]
    return values - outcome.weights[name] if kind == "updated" else values


def _held(kind: str, name: str, outcome: Outcome, dims: ParallelismDims) -> list[Held]:
    """What every rank that has the tensor holds of it."""
    found = []
    for rank, part in enumerate(outcome.parts):
        values = getattr(part, kind).get(name)
        if values is None:
            continue
        index = dims.index(rank, {axis: (axis,) for axis in BASE})
        at: dict[str, int] = {}
        for axis, place in index.items():
            called = _CALLED.get(axis, axis)
            at[called] = at.get(called, 0) * dims.base[axis] + place
        if kind == "updated":
            values = values - part.weights[name]
        found.append(Held(at, part.place(name), values))
    return found

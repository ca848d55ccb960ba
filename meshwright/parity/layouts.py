"""Layouts of at most so many ranks: those that together cover every axis and pair, or all; and how one is written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import combinations, product
from typing import Any, Final, get_args

from meshwright.comm.grid import ParallelismDims
from meshwright.errors import ConfigError, Problem, nearest
from meshwright.train.config import ParallelConfig
from meshwright.train.stages import Schedule

DEGREES: Final = ("dp_replicate", "dp_shard", "cp", "tp", "pp")
"""Their product is the number of ranks."""
SCHEDULES: Final[Sequence[Schedule]] = get_args(Schedule)
_FIELDS: Final = tuple(field.name for field in fields(ParallelConfig) if field.name != "backend")
_TRUTH: Final = {"true": True, "yes": True, "false": False, "no": False}


def world_of(layout: ParallelConfig) -> int:
    """The number of its ranks."""
    return math.prod(getattr(layout, axis) for axis in DEGREES)


def covering(ranks: int, *, experts: bool = False) -> list[ParallelConfig]:
    """Every axis on two ranks and on all `ranks`, tp with and without sequence parallelism, a pipeline with every
    schedule; every pair of axes on two ranks each, and from eight ranks on every three. experts: spread in every way
    that the other axes leave."""
    found = [layout for axis in DEGREES for layout in _variants({axis: 2})] if ranks >= 2 else []
    if ranks > 2:
        found += [layout for axis in DEGREES for layout in _variants({axis: ranks}, (True,), ("1f1b",))]
    for many in (2, 3):
        if 2**many <= ranks:
            for axes in combinations(DEGREES, many):
                found += _variants(dict.fromkeys(axes, 2), schedules=("1f1b",))
    return _by_world(_spread(found) if experts else found)


def every(ranks: int, *, experts: bool = False) -> list[ParallelConfig]:
    """All layouts of 2 to `ranks` ranks, with every schedule; with experts spread in every way."""
    grids = product(range(1, ranks + 1), repeat=len(DEGREES))
    found = [
        layout
        for grid in grids
        if 2 <= math.prod(grid) <= ranks
        for layout in _variants(dict(zip(DEGREES, grid, strict=True)))
    ]
    return _by_world(_spread(found) if experts else found)


def _spread(layouts: Sequence[ParallelConfig]) -> Iterator[ParallelConfig]:
    """Each layout with every number of ranks over which it can spread experts."""
    for layout in layouts:
        dims = ParallelismDims(dp_shard=layout.dp_shard, cp=layout.cp, tp=layout.tp)
        yield from (replace(layout, ep=ep) for ep in dims.expert_degrees)


def _variants(
    degrees: dict[str, int], splits: Sequence[bool] = (True, False), schedules: Sequence[Schedule] = SCHEDULES
) -> Iterator[ParallelConfig]:
    """splits: whether sequence parallel."""
    splits = splits if degrees.get("tp", 1) > 1 else (True,)
    orders: Sequence[Schedule] = schedules if degrees.get("pp", 1) > 1 else ("1f1b",)
    for sequence_parallel, schedule in product(splits, orders):
        yield ParallelConfig(**degrees, sequence_parallel=sequence_parallel, schedule=schedule)  # type: ignore[arg-type]


def _by_world(layouts: Any) -> list[ParallelConfig]:
    return sorted(layouts, key=world_of)


def named(layout: ParallelConfig) -> str:
    """As `parse` reads it: `dp_shard=2,tp=2,sequence_parallel=no`."""
    said = [f"{axis}={getattr(layout, axis)}" for axis in (*DEGREES, "ep") if getattr(layout, axis) != 1]
    if layout.tp > 1 and not layout.sequence_parallel:
        said.append("sequence_parallel=no")
    if layout.pp > 1:
        said.append(f"schedule={layout.schedule}")
    if layout.micro_batches is not None:
        said.append(f"micro_batches={layout.micro_batches}")
    return ",".join(said) or "one device"


def parse(text: str) -> ParallelConfig:
    """`dp_shard=2,tp=2` -> the layout. Errors: `ConfigError` for a name or a value that it cannot have."""
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        name = name.replace("-", "_")
        if name not in _FIELDS:
            raise _wrong(text, f"no field {name!r} of a layout{nearest(name, _FIELDS)}", f"of {', '.join(_FIELDS)}")
        values[name] = _value(text, name, value)
    return ParallelConfig(**values)


def _value(text: str, name: str, value: str) -> Any:
    if name == "schedule":
        if value not in SCHEDULES:
            raise _wrong(text, f"no schedule {value!r}{nearest(value, SCHEDULES)}", f"with {', '.join(SCHEDULES)}")
        return value
    if name == "sequence_parallel":
        if value.lower() not in _TRUTH:
            raise _wrong(text, f"sequence_parallel {value!r}", "with sequence_parallel=yes or sequence_parallel=no")
        return _TRUTH[value.lower()]
    if not value.isdecimal() or not int(value):
        raise _wrong(text, f"{name} {value!r}", f"with a number of ranks, {name}=2")
    return int(value)


def _wrong(text: str, what: str, fix: str) -> ConfigError:
    return ConfigError(Problem(where=f"--layout {text}", what=what, fix=f"--layout dp_shard=2,tp=2, {fix}"))

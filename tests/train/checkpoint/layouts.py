"""The layouts that checkpoints are saved from and loaded into, and the ranks that do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from meshwright.train.assemble import run_dims
from meshwright.train.config import TrainConfig
from tests.parity.harness import laid_out
from tests.processes import ranks

LAYOUTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "one rank": {},
    "fsdp 2": {"dp_shard": 2},
    "hsdp 2 x 2": {"dp_replicate": 2, "dp_shard": 2},
    "tp 2": {"tp": 2, "sequence_parallel": False},
    "tp 2 with sequence parallelism": {"tp": 2},
    "cp 2": {"cp": 2},
    "fsdp 2 x tp 2": {"dp_shard": 2, "tp": 2},
}

BACKENDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "full_dtensor, fsdp 2 x tp 2": {"dp_shard": 2, "tp": 2, "backend": "full_dtensor"},
    "partial_dtensor, fsdp 2 x tp 2": {"dp_shard": 2, "tp": 2, "backend": "partial_dtensor"},
    "full_dtensor, tp 2": {"tp": 2, "backend": "full_dtensor"},
    "partial_dtensor, tp 2": {"tp": 2, "backend": "partial_dtensor"},
}

PIPELINES: Final[Mapping[str, Mapping[str, Any]]] = {"pp 2": {"pp": 2}, "pp 2 x fsdp 2": {"pp": 2, "dp_shard": 2}}
"""A rank has the names of its own stages."""

EIGHT: Final[Mapping[str, Mapping[str, Any]]] = {
    "fsdp 8": {"dp_shard": 8},
    "hsdp 2 x 2, tp 2": {"dp_replicate": 2, "dp_shard": 2, "tp": 2},
    "tp 8, heads shared": {"tp": 8},
    "fsdp 2 x cp 2 x tp 2": {"dp_shard": 2, "cp": 2, "tp": 2},
    "cp 2 x tp 4": {"cp": 2, "tp": 4},
}


def on_ranks(config: TrainConfig, program: Callable[..., Any], *args: Any) -> list[Any]:
    """`program` on as many real ranks as the config has, in rank order; here where that is one."""
    world = run_dims(config).world
    return [program(0, *args)] if world == 1 else ranks(world).run(program, *args)


def configs(base: TrainConfig, layouts: Mapping[str, Mapping[str, Any]]) -> dict[str, TrainConfig]:
    return {name: laid_out(base, **parallel) for name, parallel in layouts.items()}


def by_world(named: Mapping[str, TrainConfig]) -> dict[int, dict[str, TrainConfig]]:
    """So that ranks are asked once for all layouts of as many."""
    found: dict[int, dict[str, TrainConfig]] = {}
    for name, config in named.items():
        found.setdefault(run_dims(config).world, {})[name] = config
    return found

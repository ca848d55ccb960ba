"""Contracts that are wrong: what is wrong with them, and a declaration with which the rest can still be judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from meshwright.comm.grid import Axes, ParallelismDims
from meshwright.core.contract import arguments, compile_contract, own_states
from meshwright.core.module import Module
from meshwright.core.sharding import ShardingConfig
from meshwright.errors import Problem, nearest
from meshwright.types.axes import CP, DP, TP
from meshwright.types.kinds import R
from meshwright.types.layout import SpmdLayout


def repair(model: nn.Module, dims: ParallelismDims, axes: Axes) -> tuple[list[Problem], set[str]]:
    """All that is wrong with the contracts of `model`, whose configs are changed such that none is.

    A name that is misspelt is taken for the one that it is like. A module whose contract is wrong in another way is
    not judged itself; its path is in the set.
    """
    problems: list[Problem] = []
    unjudged = set()
    for name, module in model.named_modules():
        path = name or type(module).__name__
        config = module.config if isinstance(module, Module) else None
        if config is None or config.sharding_config is None:
            continue
        _, found = compile_contract(module, config.sharding_config, path, dims, axes)
        if not found:
            continue
        problems += found
        meant = _as_meant(module, config.sharding_config)
        _, left = compile_contract(module, meant, path, dims, axes)
        if left and (less := _without_gaps(meant, left)) is not None:
            meant = less
            _, left = compile_contract(module, meant, path, dims, axes)
        if left:
            unjudged.add(path)
            meant = _outputs_alone(module, meant)
            _, left = compile_contract(module, meant, path, dims, axes)
            meant = replace(meant, out_src_shardings=None) if left else meant
        config.sharding_config = meant
    return problems, unjudged


def _as_meant(module: nn.Module, config: ShardingConfig) -> ShardingConfig:
    """With the names that are nearest to what stands there."""
    names, states = tuple(arguments(module)), tuple(own_states(module))
    region = config.local_map
    return replace(
        config,
        state_shardings=_renamed(config.state_shardings, states),
        in_src_shardings=_renamed(config.in_src_shardings, names),
        in_dst_shardings=_renamed(config.in_dst_shardings, names),
        local_map=None
        if region is None
        else replace(region, in_grad_shardings=_renamed(region.in_grad_shardings, names)),
    )


def _without_gaps(config: ShardingConfig, problems: Iterable[Problem]) -> ShardingConfig | None:
    """Without the outputs or inputs that are declared in part, where no other layout hangs on them; None: nothing."""
    fields = {problem.where.partition(".sharding_config.")[2] for problem in problems}
    sources, targets = dict(config.in_src_shardings or {}), config.in_dst_shardings or {}
    dropped = {name for name in sources if f"in_src_shardings[{name!r}]" in fields and name not in targets}
    if config.local_map is not None or not fields <= {
        "out_src_shardings",
        *(f"in_src_shardings[{name!r}]" for name in dropped),
    }:
        return None
    if "out_src_shardings" in fields and config.out_dst_shardings is not None:
        return None
    return replace(
        config,
        in_src_shardings={name: layout for name, layout in sources.items() if name not in dropped},
        out_src_shardings=None if "out_src_shardings" in fields else config.out_src_shardings,
    )


def _renamed(declared: Mapping[str, Any] | None, names: Iterable[str]) -> Any:
    if declared is None:
        return None
    free = [name for name in names if name not in declared]
    found = {}
    for name, layout in declared.items():
        alike = [other for other in free if nearest(name, [other])] or (free if len(free) == 1 else [])
        meant = alike[0] if name not in names and alike else name
        free = [other for other in free if other != meant]
        found[meant] = layout
    return found


def _outputs_alone(module: nn.Module, config: ShardingConfig) -> ShardingConfig:
    """What is handed on as it was declared; every state whole, and nothing of the inputs."""
    whole = SpmdLayout(dict.fromkeys((DP, CP, TP), R))
    handed_on = config.out_src_shardings if config.out_dst_shardings is None else config.out_dst_shardings
    return ShardingConfig(state_shardings=dict.fromkeys(own_states(module), whole), out_src_shardings=handed_on)

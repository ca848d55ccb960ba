"""Recipes with faults planted in their layouts, and the fixes that a report proposes, applied."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from meshwright.audit import Report, check
from meshwright.core.sharding import LocalMapConfig, ShardingConfig
from meshwright.errors import Problem
from meshwright.models.layouts import Plan, activation, state
from meshwright.train.config import TrainConfig
from meshwright.types.kinds import I, P, R, S
from meshwright.types.planner import Transition
from tests.parity.harness import laid_out, small

Edit = Callable[[Any, Plan], None]
"""Changes the module configs after their family has declared its layouts."""


def recipe(*edits: Edit, layers: int = 5, **parallel: object) -> TrainConfig:
    """A small Llama under a layout, with edits to what it declares."""

    def lay_out(spec: Any, modules: Any, plan: Plan) -> None:
        spec.declare(modules, plan)
        for edit in edits:
            edit(modules, plan)

    return replace(laid_out(small(layers=layers), **parallel), layouts=lay_out)


def declares(path: str, **fields: Any) -> Edit:
    """The module at `path` declares other fields."""

    def edit(modules: Any, plan: Plan) -> None:
        config = at(modules, path)
        config.sharding_config = replace(config.sharding_config, **fields)

    return edit


def at(modules: Any, path: str) -> Any:
    """The module config at a dotted path."""
    for part in path.split("."):
        modules = modules[int(part)] if part.isdigit() else getattr(modules, part)
    return modules


def region(path: str, **gradients: Any) -> Edit:
    """The region at `path` declares other gradients of some inputs."""

    def edit(modules: Any, plan: Plan) -> None:
        known = at(modules, path).sharding_config.local_map
        declares(path, local_map=replace(known, in_grad_shardings={**known.in_grad_shardings, **gradients}))(
            modules, plan
        )

    return edit


def norm_weight(modules: Any, plan: Plan) -> None:
    """A norm weight of the other type: R where the stream is I, and I where it is sharded."""
    wrong = I if plan.sequence_parallel else R
    declares("blocks.2.attention_norm", state_shardings={"weight": state(wrong)})(modules, plan)


dropped_reduction = declares("blocks.1.feed_forward.w2", out_dst_shardings=None)
wrong_dim = declares("blocks.3.attention.wq", state_shardings={"weight": state(S(1))})
misspelt = declares("blocks.4.feed_forward.w1", in_src_shardings={"xx": activation(R)})

FOUR: Sequence[tuple[Edit, str]] = (
    (dropped_reduction, "blocks.1.feed_forward.w2.sharding_config.out_dst_shardings"),
    (norm_weight, "blocks.2.attention_norm.sharding_config.state_shardings['weight']"),
    (wrong_dim, "blocks.3.attention.wq.sharding_config.state_shardings['weight']"),
    (misspelt, "blocks.4.feed_forward.w1.sharding_config.in_src_shardings['xx']"),
)
"""Four faults, each with the module and the field that it stands in, in the order of the modules."""

OTHERS: Sequence[tuple[Edit, str]] = (
    (declares("embedding", out_dst_shardings=None), "embedding.sharding_config.out_dst_shardings"),
    (declares("head", in_dst_shardings=None), "head.sharding_config.in_dst_shardings['x']"),
    (
        declares("blocks.3.attention", in_dst_shardings=None),
        "blocks.3.attention.sharding_config.in_dst_shardings['x']",
    ),
    (
        declares("blocks.0.feed_forward.w3", out_src_shardings=activation(S(1))),
        "blocks.0.feed_forward.w3.sharding_config.out_src_shardings",
    ),
    (
        declares("blocks.0.attention.wo", in_src_shardings={"x": activation(S(1))}),
        "blocks.0.attention.wo.sharding_config.in_src_shardings['x']",
    ),
    (
        declares("blocks.4.attention_norm", in_src_shardings={"x": activation(R)}),
        "blocks.4.attention_norm.sharding_config.in_src_shardings['x']",
    ),
    (
        declares("blocks.2.attention.wo", out_src_shardings=activation(S(2))),
        "blocks.2.attention.wo.sharding_config.out_src_shardings",
    ),
)
"""More faults, told in one problem each."""

REGIONS: Sequence[tuple[Edit, str]] = (
    (
        declares("blocks.1.attention.inner", out_src_shardings=activation(S(3))),
        "blocks.1.attention.inner.sharding_config.local_map",
    ),
    (
        declares("blocks.1.attention.inner", out_src_shardings=activation(R)),
        "blocks.1.attention.inner.sharding_config.local_map",
    ),
)
"""What a region declares to hand on is not what its body computes."""

SILENT: Sequence[tuple[Edit, str]] = (
    (
        declares("embedding", local_map=LocalMapConfig(in_grad_shardings={"tokens": None})),
        "embedding.sharding_config.local_map",
    ),
    (
        region("blocks.3.attention.inner", q=None),
        "blocks.3.attention.inner.sharding_config.local_map.in_grad_shardings['q']",
    ),
)
"""What a region's declaration leaves out: why a sum is one that no rule sees, and a gradient."""

CONTRACTS: Sequence[tuple[Edit, str]] = (
    (
        declares("blocks.0.attention.wv", state_shardings={"weight": state(S(2))}),
        "blocks.0.attention.wv.sharding_config.state_shardings['weight']",
    ),
    (
        declares("blocks.0.feed_forward.w3", out_src_shardings={"dp": S(0), "cp": S(1)}),
        "blocks.0.feed_forward.w3.sharding_config.out_src_shardings",
    ),
)
"""Faults that the contract shows alone; what is meant only the author knows."""


def applied(problem: Problem) -> Edit:
    """The fix of a problem, put where the problem says."""
    path, _, field = problem.where.partition(".sharding_config.")
    names = {"R": R, "I": I, "P": P, "S": S, "Transition": Transition}

    def edit(modules: Any, plan: Plan) -> None:
        config = at(modules, path)
        declared: ShardingConfig = config.sharding_config
        misspelt_name = re.match(r"one of '(\w+)'$", problem.fix)
        if misspelt_name:
            name, _, key = field.rstrip("]").partition("[")
            named = dict(getattr(declared, name))
            named[misspelt_name[1]] = named.pop(key.strip("'"))
            config.sharding_config = replace(declared, **{name: named})
            return
        for part in re.split(r", (?=out_dst_shardings)", problem.fix):
            target, _, value = part.partition(" = ")
            name, _, key = target.rstrip("]").partition("[")
            layout = eval(value, dict(names))
            if key:
                layout = {**(getattr(config.sharding_config, name) or {}), key.strip("'"): layout}
            config.sharding_config = replace(config.sharding_config, **{name: layout})

    return edit


def judged(config: TrainConfig) -> Report:
    """The report on a recipe, of the first rank's step."""
    return check(config, "mine", lambda dims: (0,))

"""Layouts of mixtures of experts. Where experts are spread, each rank routes its own tokens, and they travel to the
ranks of the sparse mesh; elsewhere every tp rank routes the same tokens, and has a part of each expert.
"""

from __future__ import annotations

from typing import Final

from meshwright.core.sharding import LocalMapConfig, ShardingConfig
from meshwright.models import layouts
from meshwright.models.layouts import Plan, activation, state
from meshwright.models.moe import MoE
from meshwright.types.axes import CP, DP, DP_REPLICATE, EFSDP, EP, TP
from meshwright.types.kinds import P, R, S
from meshwright.types.layout import SpmdLayout

SPREAD: Final = SpmdLayout({DP_REPLICATE: R, EFSDP: R, EP: S(0)})
"""A weight of all experts, whole experts on each ep rank."""
CHARGE: Final = SpmdLayout({DP: P, CP: P, TP: P})
"""What routers are charged, a sum over tokens."""

_BACK: Final = "what experts make of a token comes back to where it is"


def tokens(plan: Plan) -> SpmdLayout:
    """What is routed, [batch, sequence, ...]: on tp a part of the sequence, or the same on every rank."""
    return activation(S(1) if plan.experts_spread else R)


def counts(plan: Plan) -> SpmdLayout:
    """Numbers of tokens, counted by each rank for those that it routes."""
    return SpmdLayout({DP: P, CP: P, TP: P if plan.experts_spread else R})


def declare(moe: MoE.Config, plan: Plan) -> None:
    """Attach to a mixture and all its parts their sharding under `plan`."""
    spread = plan.experts_spread
    inside = plan.residual if spread else activation(R)  # of x; a spread expert takes tokens as they lie
    after = plan.residual if spread else activation(P)
    moe.sharding_config = ShardingConfig(
        in_src_shardings={"x": plan.residual},
        in_dst_shardings={"x": inside},
        out_src_shardings=(after, None, None),
        out_dst_shardings=(plan.residual, None, None),
    )
    moe.routed.sharding_config = ShardingConfig(
        in_src_shardings={"x": inside},
        in_dst_shardings={"x": tokens(plan)},
        out_src_shardings=(tokens(plan) if spread else activation(P), None, None),
        out_dst_shardings=(after, None, None),
    )
    router = moe.routed.router
    router.gate.sharding_config = gate(plan)
    router.choice.sharding_config = choice(plan, biased=router.choice.biased, charged=router.choice.balance > 0)
    moe.routed.experts.sharding_config = experts(plan)
    if moe.shared is not None:
        shared, enters = moe.shared, ShardingConfig(in_src_shardings={"x": inside})
        shared.sharding_config = layouts.enters(plan) if spread else enters
        shared.w1.sharding_config = layouts.colwise()
        shared.w3.sharding_config = layouts.colwise()
        shared.w2.sharding_config = layouts.rowwise(plan, out=after)


def gate(plan: Plan) -> ShardingConfig:
    """Scores of all experts, of the tokens that a rank routes. Each rank adds its own part to the weight's gradient."""
    return ShardingConfig(
        state_shardings={"weight": state(R)}, in_src_shardings={"x": tokens(plan)}, out_src_shardings=tokens(plan)
    )


def choice(plan: Plan, *, biased: bool, charged: bool) -> ShardingConfig:
    """Each rank chooses for its own tokens. biased: it has a bias; charged: it has an auxiliary loss."""
    routes = tokens(plan)
    charge = SpmdLayout({**CHARGE, TP: P if plan.experts_spread else R}) if charged else None
    return ShardingConfig(
        state_shardings={"bias": state(R)} if biased else {},
        in_src_shardings={"logits": routes},
        out_src_shardings=(routes, routes, counts(plan), charge),
        out_dst_shardings=(routes, routes, counts(plan), CHARGE if charged else None),
        local_map=LocalMapConfig(in_grad_shardings={"logits": routes.dual}),
    )


def experts(plan: Plan) -> ShardingConfig:
    """Tokens meet the experts of their choice: those of other ranks of the sparse mesh, or a part of each on tp."""
    routes = tokens(plan)
    if plan.experts_spread:
        states, out = dict.fromkeys(("w1", "w2", "w3"), SPREAD), routes
    else:
        states, out = {"w1": state(S(1)), "w2": state(S(2)), "w3": state(S(1))}, activation(P)
    return ShardingConfig(
        state_shardings=states,
        in_src_shardings=dict.fromkeys(("x", "weights", "chosen"), routes),
        out_src_shardings=out,
        local_map=LocalMapConfig(
            in_grad_shardings={"x": routes.dual, "weights": routes.dual, "chosen": None},
            claims=dict.fromkeys((DP, CP, *([TP] if plan.experts_spread else [])), _BACK),
            mesh="sparse" if plan.experts_spread else "dense",
        ),
    )


def load(plan: Plan) -> ShardingConfig:
    """A rank keeps what it counted; the sum over ranks is made once a step."""
    return ShardingConfig(
        state_shardings={"tokens": counts(plan)},
        in_src_shardings={"counts": counts(plan)},
        local_map=LocalMapConfig(in_grad_shardings={"counts": None}),
    )


def charge() -> ShardingConfig:
    """All that routers are charged, as the loss lies."""
    return ShardingConfig(
        in_src_shardings={"auxiliary": CHARGE},
        out_src_shardings=CHARGE,
        out_dst_shardings=layouts.CHARGED,
    )

"""Layouts by name: what each kind of module declares, as functions of a small plan.

Dims of activations: batch 0, sequence 1, features 2 (heads 2, features of a head 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from meshwright.core.sharding import LocalMapConfig, ShardingConfig
from meshwright.types.axes import CP, DP, TP, TP_COPY, TP_KV
from meshwright.types.kinds import I, P, R, S, SpmdType
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition

MASK: Final = SpmdLayout({DP: S(0), CP: S(2), TP: R})
"""Which keys a query sees, [batch, 1, queries, keys]."""

CHARGED: Final = SpmdLayout({DP: P, CP: P, TP: I})
"""What routers are charged for uneven loads, []: a sum over tokens, as the loss is."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The choices that a model's layouts depend on.

    sequence_parallel: between attention and feed-forward each tp rank holds a part of the sequence; otherwise all
    hold it whole, and compute on it alike.
    experts_spread: ranks hold different experts, and send each other tokens; otherwise tp splits every expert.
    """

    sequence_parallel: bool = True
    experts_spread: bool = False

    @property
    def residual(self) -> SpmdLayout:
        """The stream between blocks, [batch, sequence, dim]."""
        return activation(S(1) if self.sequence_parallel else I)

    @property
    def small(self) -> SpmdType:
        """The type on tp of a parameter that meets the stream: R where shards meet it, each rank adding its own part
        to the gradient; I where every rank computes the same."""
        return R if self.sequence_parallel else I


def activation(tp: SpmdType) -> SpmdLayout:
    """[batch@dp, sequence@cp, ...], and `tp` on tp."""
    return SpmdLayout({DP: S(0), CP: S(1), TP: tp})


def kv_activation(kv: SpmdType) -> SpmdLayout:
    """[batch@dp, sequence@cp, ...] of keys or values: `kv` over the groups of tp ranks, R among those that share."""
    return SpmdLayout({DP: S(0), CP: S(1), TP_KV: kv, TP_COPY: R})


def whole_sequence(layout: SpmdLayout) -> SpmdLayout:
    """The same with every position on every cp rank."""
    return layout.replace(**{CP: R})


def state(tp: SpmdType) -> SpmdLayout:
    """A parameter, R over the data axes: every rank there adds its own part to the gradient."""
    return SpmdLayout({DP: R, CP: R, TP: tp})


def colwise(*, bias: bool = False) -> ShardingConfig:
    """A Linear whose outputs are split: x whole, y[..., out@tp]."""
    return ShardingConfig(
        state_shardings={"weight": state(S(0)), **({"bias": state(S(0))} if bias else {})},
        in_src_shardings={"x": activation(R)},
        out_src_shardings=activation(S(2)),
    )


def kv_colwise(*, bias: bool = False) -> ShardingConfig:
    """A Linear to keys or values: split over the groups of ranks that hold different heads, alike within one."""
    weight = SpmdLayout({DP: R, CP: R, TP_KV: S(0), TP_COPY: R})
    return ShardingConfig(
        state_shardings={"weight": weight, **({"bias": weight} if bias else {})},
        in_src_shardings={"x": kv_activation(R)},
        out_src_shardings=kv_activation(S(2)),
    )


def rowwise(plan: Plan, *, bias: bool = False, out: SpmdLayout | None = None) -> ShardingConfig:
    """A Linear whose inputs are split: its output is a sum over tp, brought into the stream's layout, or into `out`.

    A bias is added by one rank only: whole at rest, a part of the sum in compute.
    """
    return ShardingConfig(
        state_shardings={
            "weight": state(S(1)),
            **({"bias": Transition(state(R), state(P))} if bias else {}),
        },
        in_src_shardings={"x": activation(S(2))},
        out_src_shardings=activation(P),
        out_dst_shardings=out or plan.residual,
    )


def norm(plan: Plan) -> ShardingConfig:
    """A norm over the features of the stream."""
    return ShardingConfig(
        state_shardings={"weight": state(plan.small)},
        in_src_shardings={"x": plan.residual},
        out_src_shardings=plan.residual,
    )


def head_norm() -> ShardingConfig:
    """A norm over the features of each query head. Ranks have different heads, so that each adds its own part to the
    gradient of the one weight, whatever the stream's layout is."""
    heads = activation(S(2))
    return ShardingConfig(state_shardings={"weight": state(R)}, in_src_shardings={"x": heads}, out_src_shardings=heads)


def kv_head_norm() -> ShardingConfig:
    """A norm over the features of each key head. Ranks that share a head each have their own queries' part of its
    gradient, and so of the weight's."""
    heads = kv_activation(S(2))
    weight = SpmdLayout({DP: R, CP: R, TP_KV: R, TP_COPY: R})
    return ShardingConfig(state_shardings={"weight": weight}, in_src_shardings={"x": heads}, out_src_shardings=heads)


def enters(plan: Plan) -> ShardingConfig:
    """A module that takes the stream into its tp region: whole on every rank, which computes its own part."""
    return ShardingConfig(in_src_shardings={"x": plan.residual}, in_dst_shardings={"x": activation(R)})


def embedding(plan: Plan) -> ShardingConfig:
    """A table whose rows, the vocabulary, are split over tp."""
    return ShardingConfig(
        state_shardings={"weight": state(S(0))},
        in_src_shardings={"tokens": activation(R)},
        out_src_shardings=activation(P),
        out_dst_shardings=plan.residual,
        local_map=LocalMapConfig(
            in_grad_shardings={"tokens": None},
            claims={TP: "a rank looks up the rows that it holds, and gives zeros for the rest"},
        ),
    )


def head(plan: Plan, *, bias: bool = False) -> ShardingConfig:
    """A Linear to logits[batch, sequence, vocab@tp]."""
    return ShardingConfig(
        state_shardings={"weight": state(S(0)), **({"bias": state(S(0))} if bias else {})},
        in_src_shardings={"x": plan.residual},
        in_dst_shardings={"x": activation(R)},
        out_src_shardings=activation(S(2)),
    )


def decoder(plan: Plan) -> ShardingConfig:
    """Tokens, and where they stand, or the stream of the layers before. What it returns the last module declares."""
    names = ("tokens", "positions", "documents", "labels", "ahead", "ahead_labels")
    of_tokens = dict.fromkeys(names, activation(R))
    return ShardingConfig(in_src_shardings={**of_tokens, "stream": plan.residual, "charged": CHARGED})


def visible() -> ShardingConfig:
    """Each rank's own queries against all keys: [batch, 1, queries@cp, keys]."""
    tokens = activation(R)
    keys = ("key_documents", "key_positions")
    names = ("documents", "positions", *keys)
    return ShardingConfig(
        in_src_shardings=dict.fromkeys(names, tokens),
        in_dst_shardings=dict.fromkeys(keys, whole_sequence(tokens)),
        out_src_shardings=MASK,
        local_map=LocalMapConfig(in_grad_shardings=dict.fromkeys(names)),
    )


def attention_region() -> ShardingConfig:
    """Each rank attends with its own heads, its own queries to the keys and values of the whole sequence."""
    heads, kv_heads = activation(S(2)), kv_activation(S(2))
    keys = whole_sequence(kv_heads)
    return ShardingConfig(
        in_src_shardings={"q": heads, "k": kv_heads, "v": kv_heads, "mask": MASK},
        in_dst_shardings={"k": keys, "v": keys},
        out_src_shardings=heads,
        local_map=LocalMapConfig(in_grad_shardings={"q": heads.dual, "k": keys.dual, "v": keys.dual, "mask": None}),
    )


def rope() -> ShardingConfig:
    """Angles from positions, whole on every tp rank."""
    angles = activation(R)
    return ShardingConfig(
        state_shardings={"frequencies": state(R)},
        in_src_shardings={"positions": activation(R)},
        out_src_shardings=(angles, angles),
    )

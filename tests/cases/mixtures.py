"""Mixtures of experts of drawn sizes under drawn layouts that they fit; and the same with a fault in one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hypothesis import strategies as st

from meshwright.models.layouts import Plan
from meshwright.train.config import TrainConfig, TrainingConfig
from tests.audit.recipes import Edit
from tests.models.specs import small_deepseek_v3, small_qwen3_moe
from tests.parity.harness import laid_out

ROUTED: Final = "blocks.1.feed_forward.routed"
"""The mixture of the last block, in both families."""
GATE, CHOICE, EXPERTS = f"{ROUTED}.router.gate", f"{ROUTED}.router.choice", f"{ROUTED}.experts"

SPREAD: Final[Sequence[Mapping[str, int]]] = (
    {"tp": 2, "ep": 2},
    {"cp": 2, "ep": 2},
    {"dp_shard": 2, "ep": 2},
    {"dp_shard": 3, "ep": 3},
    {"dp_shard": 2, "tp": 2, "ep": 2},
    {"dp_shard": 2, "tp": 2, "ep": 4},
    {"cp": 2, "tp": 2, "ep": 4},
)
"""Ranks hold different experts."""
CUT: Final[Sequence[Mapping[str, int]]] = ({"tp": 2}, {"tp": 4}, {"dp_shard": 2, "tp": 2}, {"cp": 2, "tp": 2})
"""Every tp rank has a part of each expert."""


@st.composite
def mixtures(
    draw: st.DrawFn,
    layouts: Sequence[Mapping[str, int]] = (*SPREAD, *CUT),
    families: Sequence[str] = ("qwen3", "deepseek"),
    **numbers: object,
) -> TrainConfig:
    """Two blocks, the last with experts: a token goes to two or three of a few on each rank. numbers: of the model,
    instead of drawn ones."""
    layout = draw(st.sampled_from(layouts))
    experts = layout.get("ep", 1) * draw(st.integers(1, 2)) * 2
    sizes: dict[str, Any] = {
        "experts": experts,
        "active": draw(st.integers(2, min(3, experts))),
        "expert_hidden": layout.get("tp", 1) * draw(st.integers(2, 6)),
        "balance_rate": 0.1,
    }
    if draw(st.sampled_from(families)) == "qwen3":
        config = small_qwen3_moe(**{**sizes, **numbers})
    else:
        shared = draw(st.integers(0, 2))
        config = small_deepseek_v3(**{**sizes, "shared_experts": shared, "groups": 1, "active_groups": 1, **numbers})
    parts = layout.get("cp", 1) * layout.get("tp", 1)
    data = layout.get("dp_shard", 1) * layout.get("dp_replicate", 1)
    training = TrainingConfig(
        steps=10,
        length=parts * -(-draw(st.integers(8, 14)) // parts),
        batch=data * draw(st.integers(1 if data > 1 else 2, 2)),
        seed=draw(st.integers(0, 99)),
    )
    return laid_out(replace(config, training=training), **layout, sequence_parallel=draw(st.booleans()))


def planted(config: TrainConfig, *edits: Edit) -> TrainConfig:
    """The same, with edits to what its modules declare and are."""

    def lay_out(spec: Any, modules: Any, plan: Plan) -> None:
        spec.declare(modules, plan)
        for edit in edits:
            edit(modules, plan)

    return replace(config, layouts=lay_out)

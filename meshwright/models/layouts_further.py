"""Layouts of multi-token prediction: all but its block is computed where the stream lies.

The projection contracts over features, which no rank has a part of, so that nothing is sent for it.
"""

from __future__ import annotations

from meshwright.core.sharding import ShardingConfig
from meshwright.models import layouts
from meshwright.models.further import Further
from meshwright.models.layouts import Plan


def declare(further: Further.Config, plan: Plan) -> None:
    """Attach to a further prediction and its parts their shardings, but for its block."""
    further.sharding_config = ShardingConfig(
        in_src_shardings={"x": plan.residual, "ahead": plan.residual},
        out_src_shardings=(plan.residual, None, None),
    )
    for part in (further.stream_norm, further.ahead_norm, further.projection, further.norm):
        part.sharding_config = layouts.norm(plan)

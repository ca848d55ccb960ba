"""Layouts of latent attention: what is small is computed where the stream lies, what has heads is cut over tp.

With sequence parallelism a tp rank makes the latents of its own tokens, and the latents alone are gathered.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.core.sharding import LocalMapConfig, ShardingConfig
from meshwright.models import layouts
from meshwright.models.latent import LatentAttention
from meshwright.models.layouts import Plan, activation
from meshwright.types.kinds import R, S


def declare(attention: LatentAttention.Config, plan: Plan) -> None:
    """Attach to latent attention and its parts their shardings."""
    attention.sharding_config = arrives(plan)
    if attention.wq_a is not None:
        attention.wq_a.sharding_config = layouts.norm(plan)
    if attention.q_norm is not None:
        attention.q_norm.sharding_config = layouts.norm(plan)
    attention.wq_b.sharding_config = to_heads(plan)
    attention.wkv_a.sharding_config = layouts.norm(plan)
    attention.kv_norm.sharding_config = layouts.norm(plan)
    attention.wkv_b.sharding_config = to_heads(plan)
    attention.shared_key.sharding_config = shared_key(plan)
    attention.inner.sharding_config = layouts.attention_region()
    attention.wo.sharding_config = layouts.rowwise(plan)


def arrives(plan: Plan) -> ShardingConfig:
    """A module that takes the stream as it lies; its parts gather what they need."""
    return ShardingConfig(in_src_shardings={"x": plan.residual})


def to_heads(plan: Plan) -> ShardingConfig:
    """A Linear from what lies like the stream to heads, split: it takes its input whole."""
    return replace(layouts.colwise(), in_src_shardings={"x": plan.residual}, in_dst_shardings={"x": activation(R)})


def shared_key(plan: Plan) -> ShardingConfig:
    """The one rotary key meets each rank's own heads: every rank has a part of its gradient."""
    heads, whole = activation(S(2)), activation(R)
    return ShardingConfig(
        in_src_shardings={"keys": heads, "shared": plan.residual, "cosine": whole, "sine": whole},
        in_dst_shardings={"shared": whole},
        out_src_shardings=heads,
        local_map=LocalMapConfig(
            in_grad_shardings={"keys": heads.dual, "shared": whole.dual, "cosine": None, "sine": None}
        ),
    )

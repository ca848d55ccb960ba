"""Llamas of drawn sizes under drawn layouts that they fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from meshwright.train.config import TrainConfig, TrainingConfig
from tests.parity.harness import laid_out, small


@st.composite
def llamas(
    draw: st.DrawFn,
    *,
    tp: Sequence[int] = (1, 2, 3, 4),
    kv_heads: Sequence[int] = (1, 2, 3, 4),
    replicas: Sequence[int] = (1,),
    shards: Sequence[int] = (1,),
    tied: bool | None = None,
) -> TrainConfig:
    """A few blocks at most; key/value heads split over tp, or are shared by neighbours.

    Rows are two or more, and a sequence has at least eight tokens: what `global_batch` masks leaves valid ones.
    """
    ranks = draw(st.sampled_from(tp))
    kv = draw(st.sampled_from([count for count in kv_heads if count % ranks == 0 or ranks % count == 0]))
    heads = math.lcm(ranks, kv) * draw(st.integers(1, 2))
    replicate, shard = draw(st.sampled_from(replicas)), draw(st.sampled_from(shards))
    config = small(
        dim=heads * draw(st.sampled_from([2, 4])),
        layers=draw(st.integers(1, 2)),
        heads=heads,
        kv_heads=kv,
        hidden=ranks * draw(st.integers(2, 9)),
        vocab=ranks * draw(st.integers(5, 12)),
        tied=draw(st.booleans()) if tied is None else tied,
    )
    data = replicate * shard
    training = TrainingConfig(
        steps=10,
        length=ranks * -(-draw(st.integers(8, 14)) // ranks),
        batch=data * draw(st.integers(1 if data > 1 else 2, 3)),
        seed=draw(st.integers(0, 99)),
    )
    return laid_out(
        replace(config, training=training),
        dp_replicate=replicate,
        dp_shard=shard,
        tp=ranks,
        sequence_parallel=draw(st.booleans()),
    )

"""A small DeepSeek-V3 on the standard library's sources, over four processes (dp 2 x tp 2, ep 4)."""

from meshwright.models.deepseek_v3 import deepseek_v3
from meshwright.train.config import OptimizerConfig, ParallelConfig, TrainConfig, TrainingConfig

config = TrainConfig(
    model=deepseek_v3("debug"),
    parallel=ParallelConfig(dp_shard=2, tp=2, ep=4),
    training=TrainingConfig(steps=100, length=128, batch=16, validate_every=20, validation_batches=4),
    optimizer=OptimizerConfig(rate=2e-3, warmup=20),
)

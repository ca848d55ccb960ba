"""A small Qwen3 on the standard library's sources, over four processes on a laptop (dp 2 x tp 2)."""

from meshwright.models.qwen3 import qwen3
from meshwright.train.config import OptimizerConfig, ParallelConfig, TrainConfig, TrainingConfig

config = TrainConfig(
    model=qwen3("debug"),
    parallel=ParallelConfig(dp_shard=2, tp=2),
    training=TrainingConfig(steps=100, length=128, batch=16, validate_every=20, validation_batches=4),
    optimizer=OptimizerConfig(rate=2e-3, warmup=20),
)

"""A small Qwen3 with experts on the standard library's sources, over four processes (dp 2 x tp 2, ep 4)."""

from meshwright.models.qwen3_moe import qwen3_moe
from meshwright.train.config import OptimizerConfig, ParallelConfig, TrainConfig, TrainingConfig

config = TrainConfig(
    model=qwen3_moe("debug"),
    parallel=ParallelConfig(dp_shard=2, tp=2, ep=4),
    training=TrainingConfig(steps=100, length=128, batch=16, validate_every=20, validation_batches=4),
    optimizer=OptimizerConfig(rate=2e-3, warmup=20),
)

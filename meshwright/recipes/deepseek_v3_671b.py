"""DeepSeek-V3 671B over 1024 devices, dp_shard 128 x tp 8, ep 64."""

from meshwright.models.deepseek_v3 import deepseek_v3
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig

config = TrainConfig(
    model=deepseek_v3("671b"),
    parallel=ParallelConfig(dp_shard=128, tp=8, ep=64),
    training=TrainingConfig(length=4096, batch=128),
)

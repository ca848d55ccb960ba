"""`TrainConfig`: all that a recipe says. Every field is a flag of `meshwright train`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from meshwright.models.decoder import Decoder
from meshwright.models.layouts import Plan
from meshwright.models.spec import ModelSpec
from meshwright.train.data.config import DataConfig
from meshwright.train.stages import Schedule

BackendName = Literal["spmd_types", "full_dtensor", "partial_dtensor"]


@dataclass(kw_only=True)
class ParallelConfig:
    """How the work is split over ranks."""

    backend: BackendName = "spmd_types"
    """what carries out the declared layouts: plain tensors and planned collectives; DTensors over every axis; DTensors
    over tp alone"""
    dp_replicate: int = 1
    """groups of ranks that hold equal copies of every parameter shard"""
    dp_shard: int = 1
    """ranks over which parameters, gradients and optimizer state are split; with dp_replicate they split the batch"""
    cp: int = 1
    """ranks over which the sequence is split; each attends with its own queries to all keys"""
    tp: int = 1
    """ranks over which weights, heads and the vocabulary are split"""
    sequence_parallel: bool = True
    """split the sequence over tp between attention and feed-forward"""
    ep: int = 1
    """ranks over which experts are split: all of tp, then all of cp, then a part of dp_shard; their tokens are sent to
    them"""
    pp: int = 1
    """ranks over which layers are split"""
    schedule: Schedule = "1f1b"
    """order in which the stages of a pipeline do their micro-batches"""
    micro_batches: int | None = None
    """parts into which a pipeline cuts each micro-batch of training.accumulate; default: one for each pp rank"""

    @property
    def plan(self) -> Plan:
        """What layouts depend on."""
        return Plan(sequence_parallel=self.sequence_parallel, experts_spread=self.ep > 1)

    @property
    def filling(self) -> int:
        """Micro-batches of a pipeline for each one of training.accumulate."""
        return self.pp if self.micro_batches is None else self.micro_batches


Precision = Literal["float32", "bfloat16"]


@dataclass(kw_only=True)
class ComputeConfig:
    """How blocks and loss are computed on a rank."""

    attention: Literal["auto", "dot_product", "flex"] = "auto"
    """how attention to packed documents is computed: in one op; by flex_attention, which skips blocks of which nothing
    is seen and needs cuda; auto: flex on cuda, else dot_product"""
    compile: bool = False
    """compile each block, and the loss"""
    recompute: Literal["none", "full", "selective", "ops"] = "none"
    """activations that backward computes again: none; all inside a block; those of every second block; those inside a
    block that are no matrix products, attention or collectives"""
    precision: Precision = "float32"
    """of parameters and activations in compute; at rest parameters are float32"""
    reduce_precision: Precision = "float32"
    """of the sums of gradients over data-parallel ranks"""
    reshard: Literal["auto", "always", "never"] = "auto"
    """whether a block's parameters are freed between its forward and its backward; auto: except in a pipeline"""
    offload: bool = False
    """parameters, gradients and optimizer state in the host's memory while they are not computed with"""
    loss_chunks: int = 1
    """parts of the tokens for which logits exist at a time, in head and loss"""


@dataclass(kw_only=True)
class TrainingConfig:
    """How long and on what shapes."""

    steps: int = 1000
    """number of optimizer steps"""
    length: int = 2048
    """tokens in a sequence"""
    batch: int = 8
    """sequences in a step, over all ranks and micro-batches"""
    accumulate: int = 1
    """micro-batches whose gradients are summed in a step"""
    max_norm: float = 1.0
    """gradients are scaled down to this total norm"""
    validate_every: int = 100
    """steps between validations; one more at the first step and at the last"""
    validation_batches: int = 8
    """batches in a validation"""
    seed: int = 0
    """of the initial weights"""


@dataclass(kw_only=True)
class OptimizerConfig:
    """AdamW, with linear warm-up and a cosine decay of the learning rate."""

    rate: float = 3e-4
    """learning rate after warm-up"""
    warmup: int = 100
    """steps of linear warm-up"""
    floor: float = 0.1
    """share of the learning rate that is left at the last step"""
    beta1: float = 0.9
    """decay of the mean of gradients"""
    beta2: float = 0.95
    """decay of the mean of squared gradients"""
    epsilon: float = 1e-8
    """added to the root of the mean square"""
    weight_decay: float = 0.1
    """decoupled decay of matrices; vectors are not decayed"""


@dataclass(kw_only=True)
class OutputConfig:
    """Where a run is written."""

    folder: str = "runs"
    """folder in which each run makes its own"""
    tensorboard: bool = False
    """write the scalars for tensorboard too (extra: tensorboard)"""


@dataclass(kw_only=True)
class CheckpointConfig:
    """What is kept of a run, so that it can go on."""

    every: int = 0
    """steps between checkpoints, with one more at the last step; 0: none are kept"""
    keep: int = 2
    """how many are kept, the newest"""
    folder: str | None = None
    """folder of the checkpoints, seen by all machines; default: checkpoints in the run's folder"""
    resume: str | None = None
    """checkpoint to go on from, or run folder whose newest is taken; `--resume` is the newest of the newest run"""


@dataclass(kw_only=True)
class LaunchConfig:
    """How processes are started."""

    processes: int | None = None
    """processes to start on this machine; default: as many as the degrees multiply to"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where tensors live; auto: cuda where there is one for each process, else cpu"""
    threads: int = 1
    """threads of each process for arithmetic on a cpu"""


def declared_by_model(spec: ModelSpec, modules: Decoder.Config, plan: Plan) -> None:
    """The layouts that the model family declares for itself."""
    spec.declare(modules, plan)


@dataclass(kw_only=True)
class TrainConfig:
    """A recipe: the model, its layouts, and how it is trained."""

    model: ModelSpec
    """the model's numbers"""
    layouts: Annotated[Callable[[ModelSpec, Decoder.Config, Plan], None], tyro.conf.Suppress] = field(
        default=declared_by_model
    )
    """attaches the shardings to the module configs; a recipe may put its own here"""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)

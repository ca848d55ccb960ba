"""What may change when a run goes on, and what may not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshwright.errors import ConfigError
from meshwright.train.checkpoint.marker import Marker, Progress
from meshwright.train.checkpoint.recipe import demand_same_data, demand_same_run, recipe_of
from meshwright.train.config import (
    CheckpointConfig,
    LaunchConfig,
    OptimizerConfig,
    OutputConfig,
    ParallelConfig,
    TrainConfig,
    TrainingConfig,
)
from meshwright.train.data import DataConfig
from tests.parity.harness import small
from tests.train.checkpoint.programs import numbered

STEPS = 10


def marker(config: TrainConfig, **values: object) -> Marker:
    """As it is read from a checkpoint of step 4."""
    recipe = json.loads(json.dumps(recipe_of(config)))
    return Marker(progress=Progress(step=4), recipe=recipe, ranks="", world=1, **{"stream": {}, **values})  # type: ignore[arg-type]


def refused(config: TrainConfig, saved: TrainConfig) -> list[tuple[str, str, str]]:
    try:
        demand_same_run(config, marker(saved))
    except ConfigError as error:
        return [(problem.where, problem.what, problem.fix) for problem in error.problems]
    return []


def same_but(**values: object) -> TrainConfig:
    return replace(small(), **values)  # type: ignore[arg-type]


def training(**values: object) -> TrainingConfig:
    return replace(small().training, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "config",
    [
        small(),
        same_but(parallel=ParallelConfig(dp_shard=2, tp=2, cp=2, sequence_parallel=False)),
        same_but(training=training(steps=50, accumulate=2, validate_every=1, validation_batches=1, seed=1)),
        same_but(checkpoint=CheckpointConfig(every=3, keep=9, folder="elsewhere")),
        same_but(output=OutputConfig(folder="elsewhere"), launch=LaunchConfig(device="cpu")),
        same_but(layouts=lambda spec, modules, plan: None),
    ],
)
def test_layouts_steps_and_places_may_change(config):
    assert refused(config, small()) == []


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (small(dim=64), ("model.dim", "64, but 32 in the checkpoint", "--model.dim 32, or a new run")),
        (small(kv_heads=8), ("model.kv_heads", "8, but 4 in the checkpoint", "--model.kv-heads 4, or a new run")),
        (
            same_but(optimizer=OptimizerConfig(rate=1e-3)),
            ("optimizer.rate", "0.001, but 0.0003 in the checkpoint", "--optimizer.rate 0.0003, or a new run"),
        ),
        (
            same_but(training=training(max_norm=2.0)),
            ("training.max_norm", "2.0, but 1.0 in the checkpoint", "--training.max-norm 1.0, or a new run"),
        ),
        (
            same_but(data=DataConfig(seed=3)),
            ("data.seed", "3, but 0 in the checkpoint", "--data.seed 0, or a new run"),
        ),
        (
            same_but(training=training(steps=4)),
            ("training.steps", "4 steps, and the checkpoint is of step 4", "--training.steps above 4"),
        ),
    ],
)
def test_the_model_and_how_it_learns_may_not(config, told):
    assert refused(config, small()) == [told]


def test_all_that_is_other_is_told_at_once():
    other = replace(small(dim=64, layers=3), optimizer=OptimizerConfig(beta1=0.8), training=training(batch=8, length=8))
    assert [where for where, _, _ in refused(other, small())] == [
        "model.dim",
        "model.layers",
        "training.length",
        "training.batch",
        "optimizer.beta1",
    ]


def test_a_field_that_one_of_them_does_not_have():
    kept = marker(small())
    with pytest.raises(ConfigError) as error:
        demand_same_run(small(), replace(kept, recipe={**kept.recipe, "model.experts": 8}))
    assert [problem.what for problem in error.value.problems] == ["not there, but 8 in the checkpoint"]


def test_other_text_is_refused():
    config = small()
    position = numbered(16, 16).train(length=16, global_batch=4).state_dict()
    demand_same_data(config, marker(config, stream=position), numbered(16, 16))
    with pytest.raises(ConfigError, match=r"data\.path: the saved stream has corpus '16 x 16', this one '17 x 16'"):
        demand_same_data(config, marker(config, stream=position), numbered(17, 16))

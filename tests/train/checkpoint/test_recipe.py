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
    with pytest.raises(ConfigError, match=r"data\.path: the text of the standard library is not that of the standard"):
        demand_same_data(config, marker(config, stream=position), numbered(17, 16))


class TestData:
    """It is told by its name before any of it is read."""

    @pytest.fixture
    def texts(self, tmp_path):
        for name in ("one.txt", "two.txt", "a.json", "b.json"):
            (tmp_path / name).write_text(name)
        return tmp_path

    def of(self, texts, *names, **values):
        return same_but(data=DataConfig(path=tuple(str(texts / name) for name in names), **values))

    def test_another_file_is_refused_by_name(self, texts):
        one, two = self.of(texts, "one.txt"), self.of(texts, "two.txt")
        assert refused(two, one) == [
            (
                "data.path",
                f"{texts}/two.txt, but {texts}/one.txt in the checkpoint",
                f"--data.path {texts}/one.txt, or a new run",
            )
        ]
        assert refused(one, small())[0][2] == "--data.path with nothing after it, or a new run"

    def test_how_it_is_named_does_not_matter(self, texts, monkeypatch):
        monkeypatch.chdir(texts)
        assert refused(same_but(data=DataConfig(path=("./one.txt",))), self.of(texts, "one.txt")) == []

    def test_a_file_that_was_moved_is_left_to_its_text(self, texts):
        kept = self.of(texts, "one.txt")
        (texts / "one.txt").rename(texts / "moved.txt")
        assert refused(self.of(texts, "moved.txt"), kept) == []

    def test_a_data_set_of_another_name_is_another(self):
        one, two = (same_but(data=DataConfig(path=(name,))) for name in ("hf:a/one", "hf:a/two"))
        assert refused(two, one)[0][1] == "hf:a/two, but hf:a/one in the checkpoint"

    def test_another_tokenizer_is_refused_alone(self, texts):
        mine, kept = (self.of(texts, "one.txt", tokenizer=str(texts / name)) for name in ("a.json", "b.json"))
        assert [where for where, *_ in refused(mine, kept)] == ["data.tokenizer"]
        assert [where for where, *_ in refused(self.of(texts, "one.txt"), kept)] == ["data.tokenizer"]

    def test_a_checkpoint_that_does_not_name_it_is_left_to_its_text(self, texts):
        kept = marker(small())
        old = {name: value for name, value in kept.recipe.items() if name != "data.path"}
        demand_same_run(self.of(texts, "one.txt"), replace(kept, recipe=old))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (same_but(training=training(batch=8)), "another order"),
        (same_but(data=DataConfig(seed=3)), "another order"),
        (same_but(data=DataConfig(field="body")), "the place in the data"),
        (small(dim=64), "another model"),
        (same_but(optimizer=OptimizerConfig(rate=1e-3)), "learn in another way"),
    ],
)
def test_the_reason_is_that_of_the_field(config, reason):
    with pytest.raises(ConfigError) as error:
        demand_same_run(config, marker(small()))
    assert reason in error.value.problems[0].why

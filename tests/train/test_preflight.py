"""What cannot run is refused before a process starts, with what to write instead; and that then passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import recipes
from meshwright.errors import ConfigError
from meshwright.train.assemble import run_dims
from meshwright.train.preflight import check_vocabulary, preflight
from tests.parity.harness import laid_out, small


def message(config, world: int | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        preflight(config, run_dims(config).world if world is None else world)
    return str(refused.value)


@pytest.mark.parametrize("name", recipes.names())
def test_every_shipped_recipe_passes(name):
    config = recipes.find(name)
    preflight(config, run_dims(config).world)


@pytest.mark.parametrize(
    ("layout", "world", "told"),
    [
        ({"dp_shard": 2, "tp": 2}, 6, ["dp_shard 2 x tp 2 = 4 ranks, but the world has 6", "parallel.dp_shard = 3"]),
        ({"dp_shard": 2, "tp": 2}, 5, ["start 4 processes"]),
        ({}, 2, ["one rank = 1 ranks, but the world has 2", "parallel.dp_shard = 2"]),
        ({"dp_replicate": 2, "dp_shard": 2}, 3, ["start 4 processes"]),
    ],
)
def test_degrees_that_do_not_multiply_to_the_world(layout, world, told):
    found = message(laid_out(small(), **layout), world)
    assert all(words in found for words in told)


@pytest.mark.parametrize("axis", ["dp_replicate", "dp_shard", "tp"])
@pytest.mark.parametrize("degree", [0, -2])
def test_a_degree_below_one(axis, degree):
    assert f"parallel.{axis}: {degree} ranks" in message(laid_out(small(), **{axis: degree}), 1)


@pytest.mark.parametrize(
    ("batch", "dp", "accumulate", "legal"), [(4, 3, 1, "3, 6, 9"), (6, 2, 2, "4, 8, 12"), (1, 2, 1, "2, 4")]
)
def test_a_batch_that_does_not_divide(batch, dp, accumulate, legal):
    config = laid_out(small(), dp_shard=dp)
    config.training = replace(config.training, batch=batch, accumulate=accumulate)
    found = message(config)
    assert f"training.batch: {batch} sequences" in found
    assert f"training.batch = one of {legal}" in found
    for fixed in map(int, legal.split(", ")):
        config.training.batch = fixed
        preflight(config, dp)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("training.steps", 0),
        ("training.length", 1),
        ("training.batch", 0),
        ("training.accumulate", 0),
        ("training.validate_every", 0),
        ("training.validation_batches", -1),
        ("training.max_norm", 0.0),
        ("training.max_norm", float("nan")),
        ("optimizer.rate", -1.0),
        ("optimizer.rate", float("nan")),
        ("optimizer.warmup", -1),
        ("optimizer.epsilon", 0.0),
    ],
)
def test_a_number_that_makes_no_sense(field, value):
    config = small()
    section, name = field.split(".")
    setattr(getattr(config, section), name, value)
    found = message(config)
    assert f"{field}: {value}" in found
    assert f"--{field.replace('_', '-')}" in found


def test_features_and_a_vocabulary_that_do_not_divide():
    found = message(laid_out(small(hidden=50, vocab=65), tp=4))
    assert "blocks.0-1.feed_forward.w1.sharding_config.state_shardings['weight']: dim 0 of [50, 32]" in found
    assert "embedding.sharding_config.state_shardings['weight']: dim 0 of [65, 32]" in found


def test_several_problems_are_told_together():
    config = laid_out(small(), tp=2)
    config.training = replace(config.training, length=15, steps=0)
    config.model.vocab = 63
    found = message(config)
    assert all(words in found for words in ("training.length", "training.steps", "embedding", "head"))


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows():
    config = small()
    check_vocabulary(config, 64)
    with pytest.raises(ConfigError, match="64 rows, but the tokenizer has 65 tokens"):
        check_vocabulary(config, 65)


def test_a_model_whose_forward_fails_on_shapes_is_refused():
    config = small()

    def wrong(spec, modules, plan):
        spec.declare(modules, plan)
        modules.norm.dim = 31

    config.layouts = wrong
    assert "forward fails on shapes alone" in message(config)

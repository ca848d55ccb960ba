"""What is wrong with a recipe is said before any process starts, and what is said to help helps."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import recipes
from meshwright.core.sharding import ShardingConfig
from meshwright.errors import ConfigError, SpmdTypeError
from meshwright.models.llama3 import llama3
from meshwright.train.assemble import run_dims
from meshwright.train.config import ParallelConfig, TrainConfig, declared_by_model
from meshwright.train.preflight import check_vocabulary, preflight
from meshwright.types.kinds import R
from tests.parity.harness import laid_out, small


def changed(config, **values):
    """The config with values at dotted names (`training__batch=3`)."""
    for name, value in values.items():
        section, field = name.split("__")
        config = replace(config, **{section: replace(getattr(config, section), **{field: value})})
    return config


def problems(config, world=None):
    """All that is wrong; none if the config is accepted."""
    try:
        preflight(config, run_dims(config).world if world is None else world)
    except ConfigError as error:
        return error.problems
    return ()


def only(found):
    (problem,) = found
    return problem


@pytest.mark.parametrize("name", recipes.names())
def test_every_shipped_recipe_is_right(name):
    assert problems(recipes.find(name)) == ()


@pytest.mark.parametrize(
    "parallel",
    [{}, {"tp": 2}, {"dp_shard": 2, "tp": 4}, {"dp_replicate": 2, "dp_shard": 2}, {"tp": 8}, {"cp": 4, "tp": 4}],
    ids=str,
)
def test_so_is_a_small_one_under_many_layouts(parallel):
    assert problems(laid_out(small(), **parallel)) == ()


class TestNumbers:
    @pytest.mark.parametrize(
        ("name", "illegal", "legal"),
        [
            ("training__steps", [0, -1], [1]),
            ("training__length", [0, 1], [2]),
            ("training__batch", [0, -4], [1]),
            ("training__accumulate", [0, -1], [1]),
            ("training__validate_every", [0], [1]),
            ("training__validation_batches", [-1], [0, 1]),
            ("training__max_norm", [0.0, -1.0, math.nan], [1e-3, math.inf]),
            ("optimizer__rate", [-1e-3, math.nan, math.inf], [0.0, 1.0]),
            ("optimizer__warmup", [-1], [0, 10_000]),
            ("optimizer__floor", [-0.1, 1.1, math.nan], [0.0, 1.0]),
            ("optimizer__beta1", [-0.1, 1.0, math.nan], [0.0, 0.99]),
            ("optimizer__beta2", [1.0, 2.0], [0.0, 0.999]),
            ("optimizer__epsilon", [0.0, -1e-8], [1e-8]),
            ("optimizer__weight_decay", [-0.1, math.inf], [0.0]),
        ],
    )
    def test_a_number_that_cannot_be_is_named_as_a_flag(self, name, illegal, legal):
        for value in illegal:
            problem = only(problems(changed(small(), **{name: value})))
            assert problem.where == name.replace("__", ".")
            assert problem.what == str(value)
            assert problem.fix.startswith(f"--{problem.where.replace('_', '-')} ")
        for value in legal:
            assert problems(changed(small(), **{name: value})) == ()

    @pytest.mark.parametrize("name", ["vocab", "dim", "layers", "heads", "kv_heads", "hidden"])
    @pytest.mark.parametrize("value", [0, -2])
    def test_what_counts_something_is_one_or_more(self, name, value):
        with pytest.raises(ConfigError) as error:
            run_dims(changed(small(), **{f"model__{name}": value}))
        problem = only(error.value.problems)
        assert (problem.where, problem.what) == (f"model.{name}", str(value))

    @pytest.mark.parametrize("name", ["theta", "epsilon", "std"])
    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
    def test_scales_are_positive(self, name, value):
        with pytest.raises(ConfigError, match=rf"model\.{name}: {value}"):
            run_dims(changed(small(), **{f"model__{name}": value}))

    def test_all_of_them_at_once(self):
        found = problems(changed(small(), training__steps=0, optimizer__rate=-1.0, training__batch=0))
        assert {problem.where for problem in found} == {"training.steps", "optimizer.rate", "training.batch"}


class TestHeads:
    @pytest.mark.parametrize(("dim", "heads"), [(34, 8), (33, 1), (40, 8), (8, 8)])
    def test_heads_have_an_even_number_of_features(self, dim, heads):
        config = changed(small(kv_heads=1), model__dim=dim, model__heads=heads)
        with pytest.raises(ConfigError) as error:
            run_dims(config)
        problem = only(error.value.problems)
        assert problem.what == f"{dim} features do not make {heads} heads of an even number each"
        proposed = int(problem.fix.removeprefix("--model.dim "))
        assert problems(changed(config, model__dim=proposed)) == ()

    @pytest.mark.parametrize(
        ("heads", "kv_heads", "legal"), [(8, 3, "1, 2, 4, 8"), (8, 16, "1, 2, 4, 8"), (6, 4, "1, 2, 3, 6")]
    )
    def test_every_key_serves_as_many_queries(self, heads, kv_heads, legal):
        config = changed(small(dim=48), model__heads=heads, model__kv_heads=kv_heads)
        with pytest.raises(ConfigError) as error:
            run_dims(config)
        assert only(error.value.problems).fix == (
            f"--model.kv-heads with one of {legal}; or --model.heads with a multiple of {kv_heads}: "
            f"{kv_heads}, {2 * kv_heads}, {3 * kv_heads}, ..."
        )
        for proposed in map(int, legal.split(", ")):
            assert problems(changed(config, model__kv_heads=proposed)) == ()

    @pytest.mark.parametrize(
        ("heads", "kv_heads", "tp"), [(8, 4, 3), (8, 4, 16), (8, 8, 6), (12, 4, 8), (12, 6, 4), (6, 3, 4), (8, 1, 3)]
    )
    def test_a_rank_holds_whole_heads(self, heads, kv_heads, tp):
        config = laid_out(small(dim=48, hidden=48, vocab=48, heads=heads, kv_heads=kv_heads), tp=tp)
        config = changed(config, training__length=48, model__dim=24 * heads)
        found = problems(config)
        assert {problem.where for problem in found} == {"blocks.0.attention", "blocks.1.attention"}
        for problem in found:
            assert problem.what == f"{heads} heads with {kv_heads} key/value heads do not split over tp {tp}"
        legal = [int(number) for number in re.findall(r"\d+", found[0].fix)]
        assert tp not in legal
        for number in legal:
            assert problems(changed(config, parallel__tp=number)) == (), number
        others = set(range(1, heads + 1)) - set(legal)
        assert all(problems(changed(config, parallel__tp=number)) for number in others)


class TestDivisions:
    @pytest.mark.parametrize(("length", "tp"), [(5, 2), (15, 2), (6, 4), (1023, 2), (3, 2)])
    def test_a_sequence_that_does_not_divide_names_the_next_lengths_that_do(self, length, tp):
        config = changed(laid_out(small(), tp=tp), training__length=length)
        problem = only(problems(config))
        assert problem.where == "training.length"
        assert problem.what == f"{length} tokens do not divide over tp {tp}"
        proposed = [int(number) for number in re.findall(r"\d+", problem.fix)]
        assert all(abs(number - length) < 2 * tp for number in proposed)
        for number in proposed:
            assert problems(changed(config, training__length=number)) == ()
        assert "--parallel.no-sequence-parallel" in problem.fix
        assert problems(changed(config, parallel__sequence_parallel=False)) == ()

    @pytest.mark.parametrize(
        ("length", "parallel", "over"),
        [
            (6, {"cp": 4}, "cp 4"),
            (5, {"cp": 2, "tp": 2}, "cp 2"),
            (6, {"cp": 2, "tp": 2}, "cp 2 x tp 2"),
        ],
    )
    def test_a_sequence_is_cut_over_cp_and_then_over_tp(self, length, parallel, over):
        config = changed(laid_out(small(), **parallel), training__length=length)
        problem = only(problems(config))
        assert (problem.where, problem.what) == ("training.length", f"{length} tokens do not divide over {over}")
        for number in re.findall(r"\d+", problem.fix):
            longer = changed(config, training__length=int(number), parallel__sequence_parallel=False)
            assert problems(longer) == ()

    @pytest.mark.parametrize(
        ("batch", "parallel", "accumulate"),
        [
            (3, {"dp_shard": 2}, 1),
            (4, {"dp_shard": 2}, 4),
            (6, {"dp_replicate": 2, "dp_shard": 2}, 1),
            (5, {}, 2),
            (1, {"dp_shard": 2, "tp": 2}, 1),
        ],
    )
    def test_a_batch_that_does_not_divide_names_the_next_that_do(self, batch, parallel, accumulate):
        config = changed(laid_out(small(), **parallel), training__batch=batch, training__accumulate=accumulate)
        problem = only(problems(config))
        assert problem.where == "training.batch"
        assert f"{batch} sequences do not divide" in problem.what
        for number in re.findall(r"\d+", problem.fix):
            assert problems(changed(config, training__batch=int(number))) == ()

    @pytest.mark.parametrize("vocab", [63, 50])
    def test_a_vocabulary_that_does_not_divide(self, vocab):
        found = problems(changed(laid_out(small(), tp=4), model__vocab=vocab))
        assert [problem.where for problem in found] == [
            "embedding.sharding_config.state_shardings['weight']",
            "head.sharding_config.state_shardings['weight']",
        ]
        assert all(f"dim 0 of [{vocab}, 32] does not divide over tp = 4 ranks" in problem.what for problem in found)

    def test_a_feed_forward_that_does_not_divide(self):
        found = problems(changed(laid_out(small(), tp=4), model__hidden=50))
        assert {problem.where.split(".")[3] for problem in found} == {"w1", "w2", "w3"}

    def test_numbers_and_layouts_are_told_together(self):
        config = changed(laid_out(small(), dp_shard=2, tp=2), training__batch=3, training__length=5, model__vocab=63)
        wheres = [problem.where for problem in problems(config)]
        assert wheres[:2] == ["training.batch", "training.length"]
        assert len(wheres) == 4


class TestWorld:
    def test_degrees_below_one(self):
        with pytest.raises(ConfigError) as error:
            preflight(laid_out(small(), tp=0, dp_shard=-1), 1)
        assert [problem.where for problem in error.value.problems] == ["parallel.dp_shard", "parallel.tp"]

    @pytest.mark.parametrize(
        ("parallel", "world", "fix"),
        [
            ({"dp_shard": 2, "tp": 2}, 8, "--parallel.dp-shard 4"),
            ({"dp_shard": 2}, 4, "--parallel.dp-shard 4"),
            ({"tp": 2}, 3, "start 2 processes, or choose degrees that multiply to 3"),
        ],
    )
    def test_the_world_is_the_product_of_the_degrees(self, parallel, world, fix):
        with pytest.raises(ConfigError) as error:
            preflight(laid_out(small(), **parallel), world, "the number of processes")
        problem = only(error.value.problems)
        assert problem.where == "the number of processes"
        assert f"but the world has {world}" in problem.what
        assert problem.fix == fix


class TestShapes:
    def test_a_recipe_whose_layouts_are_wrong(self):
        """Its own layouts leave one axis out."""

        def own(spec, modules, plan):
            declared_by_model(spec, modules, plan)
            modules.norm.sharding_config = ShardingConfig(state_shardings={"weight": {"dp": R, "cp": R}})

        config = replace(laid_out(small(), tp=2), layouts=own)
        assert "says nothing of 'tp'" in only(problems(config)).what

    def test_a_forward_that_fails_on_shapes_alone(self):
        """The norm hands its output on in parts, and the head declares that it gets the whole."""

        def own(spec, modules, plan):
            declared_by_model(spec, modules, plan)
            modules.blocks[0].attention.wo.sharding_config.out_dst_shardings = None

        problem = only(problems(replace(laid_out(small(), tp=2), layouts=own)))
        assert problem.where == "model"
        assert problem.what.startswith("forward fails on shapes alone: RuntimeError: ")
        assert "4 x 16 tokens" in problem.why

    def test_what_a_crossing_refuses_is_handed_on_as_it_is(self):
        def own(spec, modules, plan):
            declared_by_model(spec, modules, plan)
            rope, head = modules.rope.sharding_config, modules.head.sharding_config
            rope.out_src_shardings = head.in_src_shardings["x"]
            rope.out_dst_shardings = head.in_dst_shardings["x"]

        with pytest.raises(SpmdTypeError, match="it is a tuple"):
            problems(replace(laid_out(small(), tp=2), layouts=own))


class TestVocabulary:
    def test_every_token_has_a_row(self):
        check_vocabulary(small(), 64)
        with pytest.raises(ConfigError) as error:
            check_vocabulary(small(), 65)
        problem = only(error.value.problems)
        assert problem.what == "64 rows, but the tokenizer has 65 tokens"
        assert problem.fix == "--model.vocab 128"
        check_vocabulary(changed(small(), model__vocab=128), 65)


@settings(max_examples=60)
@given(
    tp=st.sampled_from([1, 2, 3, 4, 6, 8]),
    dp_shard=st.sampled_from([1, 2, 3]),
    heads=st.sampled_from([2, 4, 6, 8]),
    kv_heads=st.sampled_from([1, 2, 3, 4, 8]),
    length=st.sampled_from([5, 12, 24]),
    vocab=st.sampled_from([50, 96]),
    sequence_parallel=st.booleans(),
)
def test_what_is_accepted_is_what_divides(tp, dp_shard, heads, kv_heads, length, vocab, sequence_parallel):
    config = small(dim=8 * heads, heads=heads, kv_heads=kv_heads, hidden=48, vocab=vocab, layers=1)
    config = changed(config, training__length=length, training__batch=6)
    config = laid_out(config, tp=tp, dp_shard=dp_shard, sequence_parallel=sequence_parallel)
    right = (
        heads % kv_heads == 0
        and heads % tp == 0
        and (kv_heads % tp == 0 or tp % kv_heads == 0)
        and (length % tp == 0 or not sequence_parallel)
        and vocab % tp == 0
    )
    try:
        accepted = problems(config) == ()
    except ConfigError:  # of the model's own numbers
        accepted = False
    assert accepted == right


@pytest.mark.parametrize("size", ["1b", "8b", "405b"])
@pytest.mark.parametrize("tp", [2, 8, 16])
def test_published_sizes_under_tp(size, tp):
    config = TrainConfig(model=llama3(size), parallel=ParallelConfig(tp=tp))
    assert problems(config) == ()
    assert run_dims(config).tp_copy == max(1, tp // 8)  # they have 8 key/value heads

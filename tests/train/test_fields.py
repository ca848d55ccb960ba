"""A recipe file may say anything; what a field is not for is told before anything runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.audit.check import check
from meshwright.errors import ConfigError
from meshwright.train.assemble import run_dims
from meshwright.train.fields import problems
from tests.parity.harness import small, small_qwen3

WRONG = [
    ("parallel.schedule", "foo"),
    ("parallel.schedule", None),
    ("parallel.backend", "dtensor"),
    ("parallel.tp", "2"),
    ("parallel.pp", 2.0),
    ("parallel.pp", True),
    ("parallel.micro_batches", 2.5),
    ("parallel.sequence_parallel", "no"),
    ("parallel.sequence_parallel", None),
    ("compute.precision", "fp8"),
    ("compute.reduce_precision", "float16"),
    ("compute.recompute", "all"),
    ("compute.reshard", "sometimes"),
    ("compute.compile", "yes"),
    ("compute.offload", 1),
    ("checkpoint.folder", 3),
    ("output.tensorboard", "no"),
    ("launch.device", "tpu"),
]


def holding(name, value):
    section, field = name.split(".")
    config = small()
    return replace(config, **{section: replace(getattr(config, section), **{field: value})})


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_it_is_named_with_what_belongs_there(name, value):
    config = holding(name, value)
    (problem,) = problems(config)
    assert problem.where == name
    assert repr(value) in problem.what
    assert problem.fix.startswith(f"{name.split('.')[1]} = ")
    with pytest.raises(ConfigError):
        run_dims(config)
    report = check(config)
    assert [each.where for each in report.told] == [name]


def test_a_whole_section():
    (problem,) = problems(replace(small(), compute=None))
    assert problem.where == "compute"
    assert not check(replace(small(), compute=None)).right


def test_a_word_like_one_that_is_known():
    (problem,) = problems(holding("compute.recompute", "selectiv"))
    assert "'selective'" in problem.what


@pytest.mark.parametrize("config", [small(), small_qwen3()])
def test_what_ships_is_right(config):
    assert problems(config) == []


def test_a_switch_of_the_model():
    config = replace(small(), model=replace(small().model, tied="no"))
    with pytest.raises(ConfigError) as error:
        run_dims(config)
    (problem,) = error.value.problems
    assert problem.where == "model.tied"
    assert "--model.no-tied" in problem.fix


def of_two(spec, modules):
    pass


@pytest.mark.parametrize(
    ("layouts", "what"),
    [
        (of_two, "of_two(spec, modules) cannot be called as layouts(spec, modules, plan): it has no plan"),
        (lambda spec: None, "it has no modules and no plan"),
        (lambda spec, modules, plan, more: None, "missing a required argument: 'more'"),
    ],
)
def test_layouts_that_take_something_else_are_named_where_they_stand(layouts, what):
    (problem,) = problems(replace(small(), layouts=layouts))
    assert problem.where == f"{__file__}:{layouts.__code__.co_firstlineno}"
    assert what in problem.what
    with pytest.raises(ConfigError, match="cannot be called as layouts"):
        run_dims(replace(small(), layouts=layouts))


def test_layouts_that_are_no_function():
    (problem,) = problems(replace(small(), layouts={}))
    assert (problem.where, problem.fix) == ("layouts", "def layouts(spec, modules, plan): ...")

"""An object is described by its Config first and built from it later; the config of a class belongs to it alone."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, fields, replace

import pytest

from meshwright.core.config import Configurable
from meshwright.core.module import Module
from meshwright.models.attention import Attention, DotProduct
from meshwright.models.block import Block
from meshwright.models.decoder import Decoder
from meshwright.models.feed_forward import FeedForward
from meshwright.models.layers import Embedding, Linear, RMSNorm
from meshwright.models.rope import Rope
from meshwright.train.loss import CrossEntropy

CONFIGURABLE = [Attention, Block, CrossEntropy, Decoder, DotProduct, Embedding, FeedForward, Linear, RMSNorm, Rope]


class Shape(Configurable):
    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        size: int

    def __init__(self, config: Config) -> None:
        self.config = config


class Square(Shape):
    """Adds no settings."""


class Box(Shape):
    @dataclass(kw_only=True, slots=True)
    class Config(Shape.Config):
        height: int = 1


class Crate(Box):
    """Adds none to those of Box."""


def test_a_config_builds_an_instance_of_the_class_that_it_stands_in():
    shape = Shape.Config(size=3).build()
    assert type(shape) is Shape
    assert shape.config.size == 3


def test_a_class_that_adds_no_settings_has_a_config_of_its_own():
    assert type(Square.Config(size=2).build()) is Square
    assert type(Shape.Config(size=2).build()) is Shape  # the parent's still builds the parent
    assert issubclass(Square.Config, Shape.Config)
    assert [field.name for field in fields(Square.Config)] == ["size"]


def test_a_class_that_adds_settings_keeps_those_of_its_parents():
    box = Box.Config(size=2, height=5).build()
    assert type(box) is Box
    assert (box.config.size, box.config.height) == (2, 5)
    assert type(Crate.Config(size=2).build()) is Crate


def test_each_config_knows_its_owner():
    assert [kind.Config.owner for kind in (Shape, Square, Box, Crate)] == [Shape, Square, Box, Crate]


@pytest.mark.parametrize("kind", [Shape, Square, Box, Crate])
def test_a_setting_that_does_not_exist_cannot_be_given_or_set(kind):
    config = kind.Config(size=1)
    with pytest.raises(TypeError, match="sise"):
        kind.Config(size=1, sise=2)
    with pytest.raises(AttributeError, match="sise"):
        config.sise = 2


@pytest.mark.parametrize("kind", [*CONFIGURABLE, Module], ids=lambda kind: kind.__name__)
def test_no_config_of_a_model_takes_a_name_that_it_does_not_have(kind):
    assert kind.Config.owner is kind
    assert not hasattr(object.__new__(kind.Config), "__dict__")


@pytest.mark.parametrize("kind", [Shape, Square, Box, Crate])
def test_configs_are_values(kind):
    config = kind.Config(size=4)
    for same in (copy.deepcopy(config), pickle.loads(pickle.dumps(config)), replace(config, size=4)):
        assert same == config
        assert same is not config
        assert type(same.build()) is kind
    assert replace(config, size=5).size == 5
    assert config.size == 4


def test_a_module_keeps_what_it_was_built_from():
    config = RMSNorm.Config(dim=4)
    assert config.build().config is config

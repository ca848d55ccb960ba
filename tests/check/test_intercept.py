"""Every place of torch that the checker must see is there: one that is gone would be passed over, and unseen."""

from __future__ import annotations

import importlib

import pytest

import meshwright.spmd as spmd
from meshwright.check import intercept

LOADED = ("torch._functorch.vmap", "torch._dynamo.eval_frame", "torch.nn.attention.flex_attention")
"""Modules of torch that a program may not have loaded; while they are not, nothing of them can be called."""


@pytest.fixture(autouse=True, scope="module")
def loaded():
    for name in LOADED:
        importlib.import_module(name)
    with spmd.typecheck():  # the rules are registered
        pass


def places():
    return {(each.owner(), each.name): each for each in intercept._places}


def test_this_torch_has_every_place():
    assert places()
    assert [name for owner, name in places() if owner is None or not hasattr(owner, name)] == []


def test_each_is_another_while_somebody_checks_and_the_same_again_afterwards():
    before = {(owner, name): vars(owner).get(name, getattr(owner, name)) for owner, name in places()}
    with spmd.typecheck():
        during = {(owner, name): vars(owner).get(name, getattr(owner, name)) for owner, name in places()}
    after = {(owner, name): vars(owner).get(name, getattr(owner, name)) for owner, name in places()}
    assert [key for key, found in during.items() if found is before[key]] == []
    assert [key for key, found in after.items() if found is not before[key]] == []


def test_a_place_that_is_gone_is_noticed(monkeypatch):
    gone = intercept.Place(lambda: importlib.import_module(LOADED[0]), "_no_such_name", lambda original: original)
    monkeypatch.setattr(intercept, "_places", [*intercept._places, gone])
    with pytest.raises(AssertionError, match="_no_such_name"):
        test_this_torch_has_every_place()

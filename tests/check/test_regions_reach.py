"""What the function of a region can reach is found, however many steps away it is kept."""

from __future__ import annotations

import dataclasses
import functools
import types

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.check.programs_alone import accepted, given, refused

R, S = spmd.R, spmd.S
CUT = {"tp": S(0)}


def weight():
    return given(R, 6, 6)


def region(function):
    return spmd.local_map(in_types=(CUT,), out_types=CUT)(function)(given(S(0), 4, 6))


def filled_in(w):
    return functools.partial(lambda first, x: x @ first, w)


def named(w):
    return functools.partial(lambda x, second: x @ second, second=w)


def inner(w):
    def product(x):
        return x @ w

    return lambda x: product(x)


def wrapped(w):
    def product(x):
        return x @ w

    @functools.wraps(product)
    def outer(*args):
        return product(*args)

    return outer


class Called:
    """What is called keeps its weight as an attribute, behind a property, or as one of its class."""

    def __init__(self, w):
        self.w = w

    @property
    def doubled(self):
        return self.w * 2

    def __call__(self, x):
        return self.product(x)

    def product(self, x):
        return x @ self.w

    def by_property(self, x):
        return x @ self.doubled


def of_a_class(w):
    class Held:
        kept = w

        def __call__(self, x):
            return x @ self.kept

    return Held()


@dataclasses.dataclass(slots=True)
class Slotted:
    w: torch.Tensor


@dataclasses.dataclass
class Outer:
    inner: Slotted


def product_of(w):
    HELD["w"] = w
    return lambda x: helper(x)


HELD = {}


def helper(x):
    return x @ HELD["w"]


def linear(w):
    made = torch.nn.Linear(6, 6, bias=False)
    made.weight = torch.nn.Parameter(w.detach())
    spmd.assert_type(made.weight, {"tp": R})
    return made


WAYS = {
    "an argument that is filled in": filled_in,
    "a keyword that is filled in": named,
    "a function in a function": inner,
    "a function that is wrapped": wrapped,
    "an object that is called": Called,
    "a method of an object": lambda w: Called(w).product,
    "a property of an object": lambda w: Called(w).by_property,
    "an object in a closure": lambda w: (lambda held: lambda x: held(x))(Called(w)),
    "a class": of_a_class,
    "a namespace": lambda w: (lambda held: lambda x: x @ held.w)(types.SimpleNamespace(w=w)),
    "a dataclass in a dataclass": lambda w: (lambda held: lambda x: x @ held.inner.w)(Outer(Slotted(w))),
    "a function of the file": product_of,
    "a module": linear,
    "what is filled in, of a module": lambda w: functools.partial(linear(w)),
}


@pytest.mark.parametrize("name", WAYS)
def test_its_gradient_has_to_be_declared(name):
    problem = refused(lambda: region(WAYS[name](weight())), Code.REGION)
    assert "the gradient is P" in problem.why


@pytest.mark.parametrize("name", WAYS)
def test_without_a_gradient_nothing_is_declared(name):
    def program():
        w = weight()
        with torch.no_grad():
            return region(WAYS[name](w))

    assert accepted(program) == CUT


def cyclic():
    """Attributes that nobody names, and objects that hold each other."""
    held = types.SimpleNamespace(w=weight(), factor=2.0)
    held.itself = held
    return region(lambda x: x * held.factor * held.itself.factor)


def test_what_is_not_named_is_not_taken():
    assert accepted(cyclic) == CUT


NAMELESS = {
    "a module": lambda: linear(weight()),
    "what is filled in": lambda: functools.partial(torch.mul, other=2),
    "an object": lambda: Called(weight()),
}


@pytest.mark.parametrize("name", NAMELESS)
def test_a_function_without_a_name_is_told_by_another(name):
    def program():
        return spmd.local_map(in_types=({"tp": R},), out_types={"tp": S(3)})(NAMELESS[name]())(given(R, 4, 6))

    problem = refused(program, Code.REGION)
    assert any(called in problem.where for called in ("Linear", "mul", "Called"))

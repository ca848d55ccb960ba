"""What the body of a region uses is found, however many steps away it is kept."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import types

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.check.programs_alone import accepted, given, refused

R, P, S = spmd.R, spmd.P, spmd.S
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


class Base(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = torch.nn.Parameter(w.detach())
        spmd.assert_type(self.w, {"tp": R})

    def forward(self, x):
        return x @ self.w


class Derived(Base):
    def forward(self, x):
        return super().forward(x)


def by_a_hook(w):
    made = torch.nn.Identity()
    made.register_forward_hook(lambda module, given, result: result @ w)
    return made


def cached(w):
    class Held:
        @functools.cached_property
        def w(self):
            return w

    held = Held()
    return lambda x: x @ held.w


def of_a_function(w):
    def product(x):
        return x @ product.w

    product.w = w
    return product


def in_a_scope(w):
    @contextlib.contextmanager
    def scope():
        yield w

    def product(x):
        with scope() as held:
            return x @ held

    return product


class Overloaded:
    def __init__(self, w):
        self.w = w

    def __rmatmul__(self, x):
        return x @ self.w

    def __getitem__(self, name):
        return self.w


def written(w):
    def product(x):
        y = x * 1
        y[0] = w[0]
        return y * x

    return product


def written_itself(w):
    row = spmd.assert_type(torch.ones(6, dtype=w.dtype, requires_grad=True), {"tp": R})

    def product(x):
        y = x * 1
        y[0] = row
        return y * x

    return product


WAYS = {
    "a write of a part": written,
    "a write of it": written_itself,
    "a method of the class above": Derived,
    "a hook of a module": by_a_hook,
    "what is cached": cached,
    "an attribute of a function": of_a_function,
    "a scope": in_a_scope,
    "an operator of an object": lambda w: (lambda held: lambda x: held.__rmatmul__(x))(Overloaded(w)),
    "an entry of an object": lambda w: (lambda held: lambda x: x @ held["w"])(Overloaded(w)),
    "by its name": lambda w: (lambda held: lambda x: x @ getattr(held, "".join("w")))(types.SimpleNamespace(w=w)),
    "a queue": lambda w: (lambda held: lambda x: x @ held[0])(collections.deque([w])),
    "a generator": lambda w: (lambda held: lambda x: x @ next(held))(w for _ in range(1)),
    "mapped over": lambda w: torch.vmap(lambda row: row @ w),
    "a checkpointed part": lambda w: lambda x: checkpoint(lambda x: x @ w, x, use_reentrant=False),
    "made of it": lambda w: lambda x: x @ (w * 2).T,
    "a view from outside": lambda w: (lambda seen: lambda x: x @ seen)(w.view(6, 6)),
    "made outside": lambda w: (lambda made: lambda x: x @ made)(w * 2),
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


def as_arguments(holder):
    """What holds the weight is an argument that is no tensor."""

    def program():
        held = holder(weight())
        body = spmd.local_map(in_types=(CUT, None), out_types=CUT)(lambda x, held: held[0](x))
        return body(given(S(0), 4, 6), [held])

    return program


@pytest.mark.parametrize("holder", [linear, inner, Called])
def test_arguments_that_are_no_tensors_are_looked_into(holder):
    assert "the gradient is P" in refused(as_arguments(holder), Code.REGION).why


UNUSED = {
    "another attribute": lambda w: (lambda held: lambda x: x * held.factor)(types.SimpleNamespace(w=w, factor=2.0)),
    "another method": lambda w: (lambda held: lambda x: held.twice(x))(
        types.SimpleNamespace(w=w, twice=lambda x: x * 2)
    ),
    "its shape alone": lambda w: lambda x: x * w.shape[0],
    "without its gradient": lambda w: lambda x: x @ w.detach(),
    "where no gradient is kept": lambda w: torch.no_grad()(lambda x: x @ w),
    "for what is whole too": lambda w: lambda x: x * 2,
}


@pytest.mark.parametrize("name", UNUSED)
def test_what_is_not_used_needs_no_gradient(name):
    assert accepted(lambda: region(UNUSED[name](weight()))) == CUT


def test_a_region_in_a_region_knows_what_the_outer_one_made():
    """And the outer one what the inner one made."""
    inner = spmd.local_map(in_types=(CUT, {"tp": R}), out_types=CUT, in_grad_types=(None, {"tp": P}))(torch.matmul)
    outer = spmd.local_map(in_types=(CUT, {"tp": R}), out_types=CUT, in_grad_types=(None, {"tp": P}))(
        lambda x, w: inner(x * 2, w * 2) * 2
    )
    assert accepted(lambda: outer(given(S(0), 4, 6), weight())) == CUT


def test_an_inner_region_is_held_to_what_it_declares():
    inner = spmd.local_map(in_types=(CUT,), out_types=CUT)
    outer = spmd.local_map(in_types=(CUT, {"tp": R}), out_types=CUT, in_grad_types=(None, {"tp": P}))(
        lambda x, w: inner(lambda x: x @ w)(x)
    )
    assert "the gradient is P" in refused(lambda: outer(given(S(0), 4, 6), weight()), Code.REGION).why


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

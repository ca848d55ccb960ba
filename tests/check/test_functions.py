"""Custom autograd.Functions declare their type, and their backward is held against it."""

from __future__ import annotations

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.check.programs_alone import accepted, given, refused

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


def function(forward, backward, declared, name="Mine"):
    """A Function of one tensor. declared: {axis: type}, None where it says nothing."""
    members = {
        "forward": staticmethod(lambda ctx, x: (ctx.save_for_backward(x), forward(x))[1]),
        "backward": staticmethod(lambda ctx, g: backward(ctx.saved_tensors[0], g)),
    }
    if declared is not None:
        members["spmd_typecheck"] = staticmethod(lambda *, x: declared)
    return type(name, (torch.autograd.Function,), members)


def summed(dst):
    return lambda x: spmd.all_reduce(x, "tp", src=P, dst=dst)


SAME = lambda x: x.view_as(x)  # noqa: E731

RIGHT = {
    "pointwise": (lambda x: x * x, lambda x, g: 2 * x * g, {"tp": S(0)}, S(0)),
    "enters a parallel region": (SAME, lambda x, g: summed(R)(g), {"tp": R}, I),
    "leaves it": (summed(R), lambda x, g: g, {"tp": I}, P),
    "gathers": (
        lambda x: spmd.all_gather(x, "tp", src=S(0), dst=R),
        lambda x, g: spmd.reduce_scatter(g, "tp", src=P, dst=S(0)),
        {"tp": R},
        S(0),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_function_whose_backward_is_its_adjoint_is_accepted(name):
    forward, backward, declared, kind = RIGHT[name]
    assert accepted(lambda: function(forward, backward, declared).apply(given(kind, 4))) == declared


WRONG = {
    "says nothing": (SAME, lambda x, g: g, None, R, "says nothing of types"),
    "gradient not reduced": (SAME, lambda x, g: g, {"tp": R}, I, "the gradient that backward returns for x is P"),
    "reduced twice": (summed(R), lambda x, g: summed(R)(g), {"tp": I}, P, None),
    "declared otherwise": (lambda x: x * x, lambda x, g: 2 * x * g, {"tp": P}, R, "output 0 of forward is R"),
    "a wrong factor": (lambda x: x * x, lambda x, g: x * g, {"tp": R}, R, "a small step"),
    "a wrong sign": (lambda x: x.exp(), lambda x, g: -x.exp() * g, {"tp": S(0)}, S(0), "a small step"),
    "reads a sum": (lambda x: x * x, lambda x, g: 2 * x * g, {"tp": P}, P, None),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_whose_backward_is_not_is_refused(name):
    forward, backward, declared, kind, says = WRONG[name]
    program = lambda: function(forward, backward, declared).apply(given(kind, 4))  # noqa: E731
    if says is None:
        from meshwright.errors import SpmdTypeError
        from tests.check.programs_alone import MESH

        with spmd.set_current_mesh(MESH), spmd.typecheck(), pytest.raises(SpmdTypeError):
            program()
    else:
        assert says in refused(program, Code.FUNCTION).what


def test_an_estimator_that_is_meant_to_differ_says_so():
    cls = function(lambda x: x.round(), lambda x, g: g, {"tp": R})
    refused(lambda: cls.apply(given(R, 4)), Code.FUNCTION)
    spmd.register_autograd_function(adjoint=False)(cls)
    assert accepted(lambda: cls.apply(given(R, 4))) == {"tp": R}


def test_outputs_may_be_stated_in_place_or_computed():
    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight.t()

        @staticmethod
        def backward(ctx, g):
            x, weight = ctx.saved_tensors
            return g @ weight, g.t() @ x

        @staticmethod
        def spmd_typecheck(*, x, weight):
            return torch.einsum("mk,nk->mn", x, weight)

    class Stated(Linear):
        @staticmethod
        def spmd_typecheck(outputs, *, x):
            spmd.assert_type_like(outputs, x, {"tp": P})

    for cls in (Linear, Stated):
        assert accepted(lambda cls=cls: cls.apply(given(S(1), 3, 4), given(S(1), 2, 4))) == {"tp": P}


def test_it_is_torchs_own_where_nobody_checks():
    cls = function(SAME, lambda x, g: 3 * g, None)
    x = torch.ones(2, requires_grad=True)
    cls.apply(x).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    before = vars(torch.autograd.Function)["apply"]
    accepted(lambda: None)
    assert vars(torch.autograd.Function)["apply"] is before


@pytest.mark.parametrize("forward", [lambda ctx, x: x, lambda ctx, x: x.view_as(x)], ids=["itself", "a view"])
def test_a_function_that_hands_its_input_on_says_what_it_is_now(forward):
    """As code does that enters a parallel region: the memory is that of the input, the type is another."""

    def typed(outputs, *, x):
        spmd.assert_type(x, {"tp": spmd.I})
        spmd.assert_type(outputs, {"tp": spmd.R})

    def backward(ctx, grad):
        return spmd.all_reduce(grad, "tp", src=spmd.P, dst=spmd.I)

    methods = {"forward": forward, "backward": backward, "spmd_typecheck": typed}
    enter = type("Enter", (torch.autograd.Function,), {name: staticmethod(each) for name, each in methods.items()})
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck():
        x = spmd.assert_type(torch.ones(3, requires_grad=True), {"tp": spmd.I})
        assert spmd.layout_of(enter.apply(x)) == {"tp": spmd.R}
        assert spmd.layout_of(x) == {"tp": spmd.I}

"""A call that torch does not take is told in torch's words; a wrong rule is not told as a fault of the program."""

from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.check.rule import RULES, Pure
from meshwright.codes import Code
from meshwright.errors import SpmdTypeError

WRONG = {
    "chunk into none": lambda x: x.chunk(0),
    "split into none": lambda x: x.split(0),
    "a dim that there is not": lambda x: x.sum(9),
    "a dim below": lambda x: x.softmax(-5),
    "a permutation of others": lambda x: x.permute(0, 5),
    "a transposition of others": lambda x: x.transpose(0, 3),
    "a dim that is text": lambda x: x.cumsum("x"),
    "a tensor times a place": lambda x: 2 @ x,
    "a power of nothing": lambda x: x**None,
    "an equation of other tensors": lambda x: torch.einsum("ij,jk->ik", x),
    "nothing to put together": lambda x: torch.cat([x, None]),
}


def judged(program, x, kind):
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck():
        return program(spmd.assert_type(x, {"tp": kind}))


def raised(run, *args):
    """What it raises; None where it raises nothing."""
    try:
        run(*args)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("kind", [spmd.R, spmd.I])
def test_what_torch_does_not_take_is_told_in_its_words(name, kind):
    true, found = raised(WRONG[name], torch.ones(2, 4)), raised(judged, WRONG[name], torch.ones(2, 4), kind)
    assert true is not None
    assert type(found) is type(true)
    assert str(found) == str(true) or isinstance(found, TypeError)


@settings(max_examples=25)
@given(chunks=st.integers(-2, 3), dim=st.integers(-4, 4), call=st.sampled_from(["chunk", "split", "unbind", "narrow"]))
def test_whatever_the_numbers_a_call_is_taken_or_refused_as_by_torch(chunks, dim, call):
    calls = {
        "chunk": lambda x: x.chunk(chunks, dim),
        "split": lambda x: x.split(chunks, dim),
        "unbind": lambda x: x.unbind(dim),
        "narrow": lambda x: x.narrow(dim, 0, chunks),
    }
    x = torch.ones(3, 4)
    error = raised(calls[call], x)
    assert type(raised(judged, calls[call], x, spmd.R)) is type(error)
    if error is None:
        true = calls[call](x)
        found = judged(lambda x: [(part, spmd.layout_of(part)) for part in calls[call](x)], x, spmd.R)
        assert [tuple(part.shape) for part, _ in found] == [tuple(part.shape) for part in true]
        assert all(layout == {"tp": spmd.R} for _, layout in found)


@pytest.mark.parametrize(
    "error", [KeyError("x"), ZeroDivisionError("x"), IndexError("x"), AssertionError("x")], ids=repr
)
def test_a_rule_that_is_wrong_says_that_it_is_the_checker(monkeypatch, error):
    def infer(*args):
        raise error

    monkeypatch.setitem(RULES, torch.sin, Pure("sin", infer))
    found = raised(judged, torch.sin, torch.ones(2), spmd.R)
    (problem,) = found.problems
    assert problem.code is Code.NO_RULE
    assert f"the rule of sin fails on this call ({type(error).__name__}" in problem.what
    assert "the fault is in the checker" in problem.why
    assert found.__cause__ is error


def test_a_form_that_a_rule_does_not_know_is_told_as_such(monkeypatch):
    def infer(input):
        raise TypeError("a form of its own")

    monkeypatch.setitem(RULES, torch.sin, Pure("sin", infer))
    (problem,) = raised(judged, torch.sin, torch.ones(2), spmd.R).problems
    assert problem.what.startswith("this form of sin (a form of its own) has no rule")


def test_a_call_that_is_only_tried_writes_nothing(monkeypatch):
    def infer(*args):
        raise KeyError("x")

    monkeypatch.setitem(RULES, torch.Tensor.add_, Pure("add_", infer, writes=True))
    kept = torch.ones(2)
    with (
        spmd.set_current_mesh(spmd.mesh(tp=2)),
        spmd.typecheck(),
        pytest.raises(SpmdTypeError, match="the rule of add_"),
    ):
        spmd.assert_type(kept, {"tp": spmd.R}).add_(1)
    assert torch.equal(kept, torch.ones(2))


@pytest.mark.parametrize(("compare", "true"), [(operator.eq, False), (operator.ne, True)])
def test_a_tensor_is_compared_with_none_as_python_does(compare, true):
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck():
        assert compare(spmd.assert_type(torch.ones(2), {"tp": spmd.R}), None) is true


def test_what_is_no_tensor_comes_back_as_it_is():
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck():
        assert spmd.assert_type(torch.ones(2), {"tp": spmd.S(0)}).type() == "torch.FloatTensor"

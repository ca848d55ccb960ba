"""A custom Function whose type is computed, in a block that is recomputed: the checker leaves what is kept alone."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.check.programs_alone import MESH, refused

R, S = spmd.R, spmd.S


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]


TYPES = {
    "a product": lambda *, x: x * x,
    "an exponential": lambda *, x: x.exp(),
    "itself": lambda *, x: x,
    "as a layout": lambda *, x: {"tp": S(0)},
}


def products(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if "mm" in str(op) else CheckpointPolicy.PREFER_RECOMPUTE


BLOCKS = {
    "kept": lambda block, *given: block(*given),
    "recomputed": partial(checkpoint, use_reentrant=False),
    "recomputed by the engine": partial(checkpoint, use_reentrant=True),
    "recomputed unless a product": partial(
        checkpoint, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(products)
    ),
}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", TYPES)
def test_gradients_are_those_without_a_checker(name, block):
    cls = type("Typed", (Square,), {"spmd_typecheck": staticmethod(TYPES[name])})

    def gradients():
        torch.manual_seed(0)
        x = spmd.assert_type(torch.randn(4, 6, requires_grad=True), {"tp": S(0)})
        w = spmd.assert_type(torch.randn(6, 6, requires_grad=True), {"tp": R})
        BLOCKS[block](lambda x, w: cls.apply(x @ w) @ w, x, w).square().sum().backward()
        return x.grad, w.grad

    with spmd.set_current_mesh(MESH), spmd.typecheck():
        checked = gradients()
    for found, wanted in zip(checked, gradients(), strict=True):
        assert torch.equal(found, wanted)


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

    @staticmethod
    def spmd_typecheck(*, x):
        return {"tp": S(0)}


@pytest.mark.parametrize("block", [name for name in BLOCKS if "engine" not in name])
def test_it_may_write_in_place(block):
    def gradient():
        x = spmd.assert_type(torch.ones(4, 6, requires_grad=True), {"tp": S(0)})
        BLOCKS[block](lambda x: InPlace.apply(x * 1).square(), x).sum().backward()
        return x.grad

    with spmd.set_current_mesh(MESH), spmd.typecheck():
        checked = gradient()
    assert torch.equal(checked, gradient())


@pytest.mark.parametrize("said", [None, (), {}, ({"tp": S(0)}, {"tp": S(0)})])
def test_one_type_is_said_of_each_output(said):
    cls = type("Typed", (Square,), {"spmd_typecheck": staticmethod(lambda *, x: said)})
    problem = refused(
        lambda: cls.apply(spmd.assert_type(torch.ones(4, 6, requires_grad=True), {"tp": S(0)})), Code.FUNCTION
    )
    assert "return one {axis: type} for each output" in problem.fix

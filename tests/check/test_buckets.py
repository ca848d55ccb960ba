"""Gradients that are reduced together, in one vector, and written back: each is what was reduced."""

from __future__ import annotations

import pytest
import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.errors import SpmdTypeError
from tests.check.judged import judged, on
from tests.denotation import local, sample

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S
DIMS = on("tp", 2)
X, W, B = sample((4, 2, 3), 1), sample((3,), 2), sample((2, 3), 3)


def gradients(rank, reduce):
    """Of a norm's weight and bias, over a sequence that is cut."""
    w, b = (spmd.assert_type(each.clone().requires_grad_(), {"tp": R}) for each in (W, B))
    x = spmd.assert_type(local({"tp": S(0)}, X, DIMS, rank), {"tp": S(0)})
    spmd.all_reduce((x * w + b).square().sum(), "tp", src=P, dst=I).backward()
    grads = [w.grad, b.grad]
    flat = reduce(_flatten_dense_tensors(grads))
    for mine, found in zip(grads, _unflatten_dense_tensors(flat, grads), strict=True):
        mine.copy_(found)
    torch.optim.SGD([w, b], lr=1.0).step()
    return w.detach(), b.detach()


def alone():
    w, b = W.clone().requires_grad_(), B.clone().requires_grad_()
    (X * w + b).square().sum().backward()
    return (w - w.grad).detach(), (b - b.grad).detach()


def test_they_are_right_when_the_vector_was_reduced():
    found = judged(lambda rank: gradients(rank, lambda x: spmd.all_reduce(x, "tp", src=P, dst=R)), DIMS)
    for rank in found:
        for mine, whole in zip(rank, alone(), strict=True):
            assert torch.equal(mine, whole)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_parts_of_a_sum_are_no_gradients_for_an_optimizer(scale):
    with pytest.raises(SpmdTypeError) as error:
        judged(lambda rank: gradients(rank, lambda x: x * scale), DIMS)
    for problem in error.value.problems:
        assert problem.code is Code.REDUCED
        assert "P on axis 'tp'" in problem.what

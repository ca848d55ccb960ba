"""`F.linear` of DTensors by rows has the result and the gradients of DTensor's own, and moves nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode

from meshwright.backends.rows import LinearByRows, linear
from meshwright.errors import SpmdTypeError
from tests.processes import ranks

S0, S1, S2, R, P = Shard(0), Shard(1), Shard(2), Replicate(), Partial()
CASES = [
    # x, weight, result, gradient of the result, gradients of x and weight
    ((S0, S1), (R, R), (S0, S1), (S0, S1), (S0, S1), (P, P)),
    ((S1, R), (R, S0), (S1, S2), (S1, S2), (S1, P), (P, S0)),
    ((S1, S2), (R, S1), (S1, P), (S1, R), (S1, S2), (P, S1)),
    ((S1, R), (R, R), (S1, R), (S1, P), (S1, P), (P, P)),
    ((S1, R), (R, R), (S1, R), (S1, R), (S1, R), (P, R)),
    ((S1, P), (R, R), (S1, P), (S1, R), (S1, R), (P, P)),
]


def _program(rank, case):
    """Largest differences from one device of the result and both gradients, their placements, and what was sent."""
    of_x, of_weight, _, arrives, *_ = case
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    torch.manual_seed(3)
    x, weight, grad = torch.randn(2, 4, 6), torch.randn(8, 6), torch.randn(2, 4, 8)
    y = F.linear(x.requires_grad_(), weight.requires_grad_())
    y.backward(grad)

    def placed(value, placements):
        """A part of a sum: half of it on each rank of the axis."""
        halves = sum(each.is_partial() for each in placements)
        local = value.detach() / 2**halves
        for axis, each in enumerate(placements):
            local = local.chunk(2, each.dim)[mesh.get_local_rank(axis)] if each.is_shard() else local
        return DTensor.from_local(local.clone(), mesh, placements, run_check=False)

    mine = [placed(x, of_x).requires_grad_(), placed(weight, of_weight).requires_grad_()]
    seed = placed(grad, arrives)
    with CommDebugMode() as sent:
        with LinearByRows():
            found = F.linear(*mine)
        grads = torch.autograd.grad(found, mine, seed)
    pairs = zip((found, *grads), (y, x.grad, weight.grad), strict=True)
    errors = [(each.full_tensor() - true).abs().max().item() for each, true in pairs]
    return errors, [each.placements for each in (found, *grads)], sent.get_total_counts()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_result_and_gradients_are_those_of_one_device_and_nothing_is_sent(case):
    made, back = case[2], case[4:]
    for errors, placements, sent in ranks(4).run(_program, case):
        assert max(errors) < 1e-5
        assert placements == [made, *back]
        assert sent == 0


def _refused(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    x = DTensor.from_local(torch.ones(2, 2, 3), mesh, [S1, S2], run_check=False)
    weight = DTensor.from_local(torch.ones(8, 6), mesh, [R, R], run_check=False)
    try:
        linear(x, weight)
    except SpmdTypeError as error:
        return str(error)
    return None


def test_what_would_have_to_move_is_refused():
    for message in ranks(4).run(_refused):
        assert "S(2)" in message or "Shard(dim=2)" in message
        assert "in_dst_shardings" in message


def _grad_elsewhere(rank):
    """The gradient of a sum comes as a sum, not whole."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    x = DTensor.from_local(torch.ones(2, 2, 3), mesh, [S1, S2], run_check=False)
    weight = DTensor.from_local(torch.ones(8, 3), mesh, [R, S1], run_check=False).requires_grad_()
    seed = DTensor.from_local(torch.ones(2, 2, 8), mesh, [S1, P], run_check=False)
    try:
        torch.autograd.grad(linear(x, weight), weight, seed)
    except SpmdTypeError as error:
        return str(error)
    return None


def test_a_gradient_that_lies_otherwise_is_refused():
    for message in ranks(4).run(_grad_elsewhere):
        assert "the gradient of what F.linear returns" in message

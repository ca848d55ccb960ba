"""A norm's weight under sequence parallelism.

Tokens [1,2], [3,4], [5,6], [7,8] are S(0)@tp=2, the weight is ones(2), the loss their product's sum: the gradient is
[16, 20] on both ranks, of which one has [4, 6] and the other [12, 14].
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from meshwright.spmd import I, P, R, S
from tests.checked import accepted, refused

CASES = [
    (2, torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])),
    (3, torch.arange(18.0).view(6, 3)),
    (4, torch.arange(32.0).view(2, 8, 2)),
]
RATE = 0.5


def dim_of(tokens: torch.Tensor) -> int:
    return tokens.dim() - 2


def product(tokens: torch.Tensor, tp: int, rank: int, kind: spmd.SpmdType, *, convert: bool):
    """(the weight, the loss) on one rank, with the weight typed `kind` and, if wanted, converted to R."""
    dim = dim_of(tokens)
    mine = spmd.assert_type(tokens.chunk(tp, dim)[rank], {"tp": S(dim)})
    weight = spmd.assert_type(nn.Parameter(torch.ones(tokens.shape[-1])), {"tp": kind})
    used = spmd.convert(weight, "tp", src=I, dst=R) if convert else weight
    return weight, (used * mine).sum()


@pytest.mark.parametrize(("tp", "tokens"), CASES)
def test_the_gradient_of_an_invariant_weight_is_summed(tp, tokens):
    def program(rank: int):
        weight, loss = product(tokens, tp, rank, I, convert=True)
        assert spmd.layout_of(loss) == {"tp": P}
        loss.backward()
        assert spmd.layout_of(weight.grad) == {"tp": I}
        torch.optim.SGD([weight], lr=RATE).step()
        return weight.grad, weight.detach()

    true = tokens.flatten(0, -2).sum(0)
    for grad, updated in accepted(ParallelismDims(tp=tp), program):
        assert torch.equal(grad, true)
        assert torch.equal(updated, 1 - RATE * true)


@pytest.mark.parametrize(("tp", "tokens"), CASES)
def test_an_invariant_weight_that_meets_shards_is_refused(tp, tokens):
    message = refused(ParallelismDims(tp=tp), lambda rank: product(tokens, tp, rank, I, convert=False)[1])
    assert f"on axis 'tp' input is I and other is S({dim_of(tokens)})" in message
    assert "I -> R: convert(input, 'tp', src=I, dst=R)" in message


@pytest.mark.parametrize(("tp", "tokens"), CASES)
def test_the_gradient_of_a_replicated_weight_is_each_ranks_own(tp, tokens):
    def program(rank: int):
        weight, loss = product(tokens, tp, rank, R, convert=False)
        loss.backward()
        assert spmd.layout_of(weight.grad) == {"tp": P}
        return weight.grad

    for rank, grad in enumerate(accepted(ParallelismDims(tp=tp), program)):
        assert torch.equal(grad, tokens.chunk(tp, dim_of(tokens))[rank].flatten(0, -2).sum(0))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize(("tp", "tokens"), CASES)
def test_an_optimizer_refuses_it_before_the_sum_and_takes_it_after(tp, tokens, optimizer):
    def program(rank: int, summed: bool):
        weight, loss = product(tokens, tp, rank, R, convert=False)
        loss.backward()
        if summed:
            weight.grad = spmd.all_reduce(weight.grad, "tp", src=P, dst=R)
        optimizer([weight], lr=RATE).step()
        return weight.grad

    message = refused(ParallelismDims(tp=tp), lambda rank: program(rank, summed=False))
    assert "a gradient that is P on axis 'tp'" in message
    assert "p.grad = all_reduce(p.grad, 'tp', src=P, dst=R)" in message
    for grad in accepted(ParallelismDims(tp=tp), lambda rank: program(rank, summed=True)):
        assert torch.equal(grad, tokens.flatten(0, -2).sum(0))

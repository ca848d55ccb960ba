"""A gradient scaler: what a rank sees of its gradients is not what all see."""

from __future__ import annotations

import torch

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.check.programs_alone import accepted, given, refused

R, P, S = spmd.R, spmd.P, spmd.S


def step(kind, *, reduce):
    weight, x = given(kind, 3), given(S(0), 2, 3) if kind is R else given(kind, 3)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale((weight * x).sum()).backward()
    if reduce:
        weight.grad = spmd.all_reduce(weight.grad, "tp", src=P, dst=R)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return weight


def test_reduced_gradients_are_scaled_back():
    assert accepted(lambda: step(R, reduce=True)) == {"tp": R}


def test_a_part_of_a_sum_says_nothing_of_whether_the_sum_is_finite():
    assert "'tp'" in refused(lambda: step(R, reduce=False), Code.NOT_LINEAR).what


def test_what_is_found_in_a_shard_is_another_thing_on_every_rank():
    assert "'tp'" in refused(lambda: step(S(0), reduce=False), Code.READ).what

"""Transforms of torch.func over programs with collectives."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, grad_and_value

import meshwright.spmd as spmd
from tests.check.judged import judged, on, refusal
from tests.denotation import denoted, local, sample

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S
X, W, V_ = sample((4, 6), 1), sample((6, 4), 2), sample((4, 6), 3)
KINDS = {"tp": I}, {"tp": S(1)}, {"tp": S(0)}


def alone(x, w, v):
    return (torch.relu(x @ w) @ v).square().sum()


def parallel(x, w, v):
    hidden = torch.relu(spmd.convert(x, "tp", src=I, dst=R) @ w)
    return spmd.all_reduce(hidden @ v, "tp", src=P, dst=I).square().sum()


def unconverted(x, w, v):
    return spmd.all_reduce(torch.relu(x @ w) @ v, "tp", src=P, dst=I).square().sum()


def unreduced(x, w, v):
    return (torch.relu(spmd.convert(x, "tp", src=I, dst=R) @ w) @ v).square().sum()


TRANSFORMS = {
    "grad": lambda loss, argnum: grad(loss, argnums=argnum),
    "grad_and_value": lambda loss, argnum: lambda *given: grad_and_value(loss, argnums=argnum)(*given)[0],
}


def on_rank(function, dims, rank):
    given = zip(KINDS, (X, W, V_), strict=True)
    return function(*(spmd.assert_type(local(kind, x, dims, rank), kind) for kind, x in given))


@pytest.mark.parametrize("argnum", [0, 1, 2])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_gradients_are_those_of_one_device(name, argnum):
    dims = on("tp", 2)
    expected = TRANSFORMS[name](alone, argnum)(X, W, V_)
    ranks = judged(lambda rank: on_rank(TRANSFORMS[name](parallel, argnum), dims, rank), dims)
    torch.testing.assert_close(denoted(KINDS[argnum], ranks, dims), expected)


@pytest.mark.parametrize("loss", [unconverted, unreduced])
def test_a_wrong_program_is_refused_in_a_transform(loss):
    problem = refusal(lambda rank: on_rank(grad(loss), on("tp", 2), rank), on("tp", 2))
    assert "'tp'" in problem.what

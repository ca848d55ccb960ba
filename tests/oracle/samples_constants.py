"""Samples of constants that are as long as what a rank holds of the dims of an operand."""

from __future__ import annotations

import torch

from tests.oracle.sample import F64, Sample, places, sample

X = (12, 12)


def ones(like):
    return torch.ones(like.shape, dtype=F64)


def two(*shape):
    """One value, of which nobody knows that it is alike everywhere."""
    return torch.arange(2.0, 3.0, dtype=F64).view(shape)


def moved(x):
    """Each row one place later, with a 1 in front."""
    out = torch.zeros_like(x)
    out[:, 1:] = x[:, :-1]
    out[:, 0] = 1.0
    return out


def added(x, y):
    """A sum that begins with a buffer as long as both."""
    out = x.new_zeros(x.shape)
    out += x
    return out + y


def part(x, y):
    """Some places of a buffer as long as another tensor."""
    out = x.new_zeros(x.shape)
    out[:, 2:8] = y[:, 2:8]
    return out * x


CONSTANTS: list[Sample] = [
    sample("expand", lambda x: x * two(1, 1).expand(x.shape), X),
    sample("expand", lambda x: x * two(1, 1).expand(x.shape[0], -1), X),
    sample("repeat", lambda x: x + two(1, 1).repeat(x.shape[0], 1), X),
    sample("broadcast_to", lambda x: x * torch.broadcast_to(two(1), x.shape), X),
    sample("cumsum", lambda x: x * ones(x).cumsum(1), X),
    sample("cumsum", lambda x: x * ones(x).cumsum(0), X),
    sample("sum", lambda x: x * ones(x).sum(), X),
    sample("sum", lambda x: x.sum() + ones(x).sum(), X),
    sample("mean", lambda x: x * ones(x).mean(), X),
    sample("amax", lambda x: x * two(1, 1).expand(x.shape).amax(), X),
    sample("sub", lambda x: (torch.zeros_like(x) - 1.0) * x, X),
    sample("add", lambda x: (torch.zeros_like(x) + 1.0) * x, X),
    sample("add", lambda x: x + torch.zeros(x.shape[0], 1, dtype=F64), X),
    sample("add", added, X, X),
    sample("mul", lambda x: torch.zeros_like(x) * 3.0 + x, X),
    sample("rdiv", lambda x: x * (1.0 / ones(x).sum()), X),
    sample("gt", lambda x: x * (ones(x).sum() > 0), X),
    sample("masked_fill", lambda x: x.masked_fill((two(1, 1) > 1).expand(x.shape), 2.0), X),
    sample("where", lambda x: torch.where((two(1, 1) > 1).expand(x.shape), x, torch.zeros_like(x)), X),
    sample("__setitem__", moved, X),
    sample("__setitem__", part, X, X),
    sample("__getitem__", lambda x, i: x[torch.arange(x.shape[0]), i], X, places(12, 12)),
    sample("__getitem__", lambda x: x[torch.arange(x.shape[0])] * 2.0, X),
    sample("__getitem__", lambda x, i: x[torch.arange(x.shape[0])[:, None], i], X, places(12, 12, 4)),
    sample("__getitem__", lambda x: x[: x.shape[0], : x.shape[1]] * 2.0, X),
    sample("narrow", lambda x: x.narrow(0, 0, x.shape[0]) * 2.0, X),
    sample("__getitem__", lambda x: x[:, [0, 3, -1]], X),
]

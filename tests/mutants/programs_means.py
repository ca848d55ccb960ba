"""Means, counts and places: what a rank knows of the whole only through its place and through the number of ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.spmd import I, P, R, S, V
from tests.mutants.program import Given, Results, program

GRID = {"dp": 2, "tp": 2}


@program(GRID, local=True)
def mean_of_equal_means(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 6), wants=True), {"dp": S(0), "tp": I})
    weight = spmd.assert_type(given("weight", (6, 3), wants=True), {"dp": R, "tp": I})
    y = torch.tanh(x @ weight)
    loss = (y * y).mean() / spmd.axis_size("dp")
    loss = spmd.reinterpret(loss, "dp", src=V, dst=P)
    loss.backward()
    weight.grad = spmd.all_reduce(weight.grad, "dp", src=P, dst=R)
    torch.optim.SGD([weight], lr=0.5).step()
    shown = spmd.all_reduce(loss.detach(), "dp", src=P, dst=R)
    return {
        "loss": spmd.assert_type(shown, {"dp": R, "tp": I}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": I}),
        "weight": spmd.assert_type(weight.detach(), {"dp": R, "tp": I}),
    }


@program(GRID)
def smoothed_labels(given: Given) -> Results:
    h = spmd.assert_type(given("h", (4, 6), wants=True), {"dp": S(0), "tp": I})
    head = spmd.assert_type(given("head", (6, 8), wants=True), {"dp": R, "tp": S(1)})
    targets = spmd.assert_type(given("targets", (4, 8)), {"dp": S(0), "tp": S(1)})
    logits = spmd.convert(h, "tp", src=I, dst=R) @ head
    mean = spmd.all_reduce(logits.sum(-1), "tp", src=P, dst=I) / 8
    total = spmd.all_reduce(logits.exp().sum(-1), "tp", src=P, dst=I)
    mine = spmd.all_reduce((logits * targets).sum(-1), "tp", src=P, dst=I)
    losses = total.log() - 0.875 * mine - 0.125 * mean
    loss = losses.sum() / 4
    loss.backward()
    head.grad = spmd.all_reduce(head.grad, "dp", src=P, dst=R)
    return {
        "losses": spmd.assert_type(losses, {"dp": S(0), "tp": I}),
        "h.grad": spmd.assert_type(h.grad, {"dp": S(0), "tp": I}),
        "head.grad": spmd.assert_type(head.grad, {"dp": R, "tp": S(1)}),
    }


@program({"dp": 2, "cp": 2})
def balanced_router(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 4, 6), wants=True), {"dp": S(0), "cp": S(1)})
    router = spmd.assert_type(given("router", (6, 4), wants=True), {"dp": R, "cp": R})
    scores = torch.softmax(x @ router, -1)
    chosen = F.one_hot(scores.argmax(-1), 4)
    counts = spmd.all_reduce(chosen.sum((0, 1)), "dp", src=P, dst=R)
    counts = spmd.all_reduce(counts, "cp", src=P, dst=R)
    share = scores.sum((0, 1)) / 16
    balance = (share * counts).sum() / 4
    loss = (scores * scores).sum() / 16
    loss = loss + 0.5 * balance
    loss.backward()
    router.grad = spmd.all_reduce(router.grad, "dp", src=P, dst=R)
    router.grad = spmd.all_reduce(router.grad, "cp", src=P, dst=R)
    return {
        "counts": spmd.assert_type(counts, {"dp": R, "cp": R}),
        "loss": spmd.assert_type(loss, {"dp": P, "cp": P}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "cp": S(1)}),
        "router.grad": spmd.assert_type(router.grad, {"dp": R, "cp": R}),
    }


@program({"cp": 2, "tp": 2})
def rotary_places(given: Given) -> Results:
    x = spmd.assert_type(given("x", (2, 6, 4), wants=True), {"cp": S(1), "tp": R})
    weight = spmd.assert_type(given("weight", (4, 8), wants=True), {"cp": R, "tp": S(1)})
    steps = spmd.assert_type(torch.arange(6.0, dtype=torch.float64), {"cp": R, "tp": R})
    places = spmd.convert(steps, "cp", src=R, dst=S(0))
    speed = spmd.assert_type(given("speed", (4,)), {"cp": R, "tp": R})
    angle = places[:, None] * speed
    y = (x * torch.cos(angle)) @ weight
    total = spmd.all_reduce(y.sum(1), "cp", src=P, dst=R)
    mean = total / 6
    y = y - mean[:, None]
    loss = (y * y * y).sum()
    loss.backward()
    weight.grad = spmd.all_reduce(weight.grad, "cp", src=P, dst=R)
    return {
        "y": spmd.assert_type(y, {"cp": S(1), "tp": S(2)}),
        "x.grad": spmd.assert_type(x.grad, {"cp": S(1), "tp": P}),
        "weight.grad": spmd.assert_type(weight.grad, {"cp": R, "tp": S(1)}),
    }

"""Steps in other hands: written by hand, reduced in hooks, recomputed, clipped by torch's own norms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import meshwright.spmd as spmd
from meshwright.spmd import I, P, R, S
from tests.mutants.program import Given, Results, program

GRID = {"dp": 2, "tp": 2}


@program(GRID)
def step_by_hand(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 6)), {"dp": S(0), "tp": R})
    weight = spmd.assert_type(given("weight", (6, 4), wants=True), {"dp": R, "tp": S(1)})
    scale = spmd.assert_type(given("scale", (6,), wants=True), {"dp": R, "tp": R})
    velocity = spmd.assert_type(given("velocity", (6,)), {"dp": R, "tp": R})
    y = (x * scale) @ weight
    loss = (y * y).sum() / 16
    dweight, dscale = torch.autograd.grad(loss, [weight, scale])
    dweight = spmd.all_reduce(dweight, "dp", src=P, dst=R)
    dscale = spmd.all_reduce(dscale, "tp", src=P, dst=R)
    dscale = spmd.all_reduce(dscale, "dp", src=P, dst=R)
    with torch.no_grad():
        weight -= 0.5 * dweight
        velocity.mul_(0.5).add_(dscale)
        scale.sub_(velocity, alpha=0.25)
    return {
        "weight": spmd.assert_type(weight.detach(), {"dp": R, "tp": S(1)}),
        "scale": spmd.assert_type(scale.detach(), {"dp": R, "tp": R}),
        "velocity": spmd.assert_type(velocity, {"dp": R, "tp": R}),
    }


@program(GRID)
def reduced_in_a_hook(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 6)), {"dp": S(0), "tp": I})
    up = spmd.assert_type(given("up", (6, 8), wants=True), {"dp": R, "tp": S(1)})
    down = spmd.assert_type(given("down", (8, 6), wants=True), {"dp": R, "tp": S(0)})

    def reduce(weight: torch.Tensor) -> None:
        weight.grad = spmd.all_reduce(weight.grad, "dp", src=P, dst=R)

    h = F.relu(spmd.convert(x, "tp", src=I, dst=R) @ up)
    y = spmd.all_reduce(h @ down, "tp", src=P, dst=I)
    loss = (y * y).sum()
    for each in (up, down):
        each.register_post_accumulate_grad_hook(reduce)
    loss.backward()
    torch.optim.Adam([up, down], lr=0.5).step()
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": I}),
        "up": spmd.assert_type(up.detach(), {"dp": R, "tp": S(1)}),
        "down": spmd.assert_type(down.detach(), {"dp": R, "tp": S(0)}),
    }


@program(GRID)
def recomputed(given: Given) -> Results:
    x = spmd.assert_type(given("x", (2, 4, 6), wants=True), {"dp": S(0), "tp": S(1)})
    scale = spmd.assert_type(given("scale", (6,), wants=True), {"dp": R, "tp": R})
    up = spmd.assert_type(given("up", (6, 8), wants=True), {"dp": R, "tp": S(1)})
    down = spmd.assert_type(given("down", (8, 6), wants=True), {"dp": R, "tp": S(0)})

    def layer(part: torch.Tensor) -> torch.Tensor:
        h = spmd.all_gather(F.rms_norm(part, (6,), scale), "tp", src=S(1), dst=R)
        h = F.silu(h @ up)
        return part + spmd.reduce_scatter(h @ down, "tp", src=P, dst=S(1))

    y = checkpoint(layer, x, use_reentrant=False)
    y = checkpoint(layer, y, use_reentrant=False)
    loss = (y * y).sum()
    loss.backward()
    scale.grad = spmd.all_reduce(scale.grad, "tp", src=P, dst=R)
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": S(1)}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": S(1)}),
        "scale.grad": spmd.assert_type(scale.grad, {"dp": P, "tp": R}),
        "up.grad": spmd.assert_type(up.grad, {"dp": P, "tp": S(1)}),
        "down.grad": spmd.assert_type(down.grad, {"dp": P, "tp": S(0)}),
    }


@program({"dp": 2, "tp": 2})
def clipped(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 6)), {"dp": S(0), "tp": R})
    weight = spmd.assert_type(given("weight", (6, 4), wants=True), {"dp": R, "tp": S(1)})
    bias = spmd.assert_type(given("bias", (4,), wants=True), {"dp": R, "tp": S(0)})
    gain = spmd.assert_type(given("gain", (6,), wants=True), {"dp": R, "tp": R})
    y = F.linear(x * gain, weight.t(), bias)
    loss = (y * y).sum() / 16
    loss.backward()
    gain.grad = spmd.all_reduce(gain.grad, "tp", src=P, dst=R)
    for each in (weight, bias, gain):
        each.grad = spmd.all_reduce(each.grad, "dp", src=P, dst=R)
    cut = weight.grad.pow(2).sum() + bias.grad.pow(2).sum()
    squares = spmd.all_reduce(cut, "tp", src=P, dst=R)
    squares = squares + torch.linalg.vector_norm(gain.grad) ** 2
    norm = squares**0.5
    factor = 0.25 / (norm + 0.125)
    torch._foreach_mul_([weight.grad, bias.grad, gain.grad], factor)
    torch.optim.SGD([weight, bias, gain], lr=0.5, foreach=True).step()
    return {
        "norm": spmd.assert_type(norm, {"dp": R, "tp": R}),
        "weight": spmd.assert_type(weight.detach(), {"dp": R, "tp": S(1)}),
        "bias": spmd.assert_type(bias.detach(), {"dp": R, "tp": S(0)}),
        "gain": spmd.assert_type(gain.detach(), {"dp": R, "tp": R}),
    }

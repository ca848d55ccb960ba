"""Losses, gradients and steps: vocab-parallel heads, data parallelism, accumulation, clipping, statistics."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.spmd import I, P, R, S, V
from tests.mutants.program import Given, Results, program

GRID = {"dp": 2, "tp": 2}


@program(GRID)
def vocab_embedding(given: Given) -> Results:
    ids = spmd.assert_type(given("ids", (6,), below=8), {"dp": S(0), "tp": R})
    table = spmd.assert_type(given("table", (8, 4), wants=True), {"dp": R, "tp": S(0)})
    with spmd.local():
        rows = table.shape[0]
        at = ids - spmd.axis_index("tp") * rows
        elsewhere = (at < 0) | (at >= rows)
        at = at.masked_fill(elsewhere, 0)
        y = F.embedding(at, table)
        y = y.masked_fill(elsewhere[:, None], 0.0)
        y = spmd.reinterpret(y, "tp", src=V, dst=P)
    y = spmd.all_reduce(y, "tp", src=P, dst=I)
    loss = (y * y).sum()
    loss.backward()
    table.grad = spmd.all_reduce(table.grad, "dp", src=P, dst=R)
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": I}),
        "table.grad": spmd.assert_type(table.grad, {"dp": R, "tp": S(0)}),
    }


@program(GRID)
def vocab_cross_entropy(given: Given) -> Results:
    h = spmd.assert_type(given("h", (6, 4), wants=True), {"dp": S(0), "tp": I})
    head = spmd.assert_type(given("head", (4, 8), wants=True), {"dp": R, "tp": S(1)})
    labels = spmd.assert_type(given("labels", (6,), below=8), {"dp": S(0), "tp": R})
    logits = spmd.convert(h, "tp", src=I, dst=R) @ head
    with spmd.local():
        top = logits.detach().amax(-1)
        top = spmd.all_gather(top, "tp", src=V, dst=R).amax(0)
        shifted = logits - top[:, None]
        total = shifted.exp().sum(-1)
        total = spmd.all_reduce(total, "tp", src=P, dst=I)
        rows = logits.shape[1]
        at = labels - spmd.axis_index("tp") * rows
        elsewhere = (at < 0) | (at >= rows)
        at = at.masked_fill(elsewhere, 0)
        picked = shifted.gather(1, at[:, None])[:, 0]
        picked = picked.masked_fill(elsewhere, 0.0)
        picked = spmd.reinterpret(picked, "tp", src=V, dst=P)
        picked = spmd.all_reduce(picked, "tp", src=P, dst=I)
    losses = total.log() - picked
    loss = losses.sum() / 6
    loss.backward()
    shown = spmd.all_reduce(loss.detach(), "dp", src=P, dst=R)
    head.grad = spmd.all_reduce(head.grad, "dp", src=P, dst=R)
    torch.optim.SGD([head], lr=0.5).step()
    return {
        "loss": spmd.assert_type(shown, {"dp": R, "tp": I}),
        "h.grad": spmd.assert_type(h.grad, {"dp": S(0), "tp": I}),
        "head": spmd.assert_type(head.detach(), {"dp": R, "tp": S(1)}),
    }


@program({"dp": 4})
def counted_tokens(given: Given) -> Results:
    x = spmd.assert_type(given("x", (8, 4)), {"dp": S(0)})
    labels = spmd.assert_type(given("labels", (8,), below=3), {"dp": S(0)})
    counts = spmd.assert_type(given("counts", (8,), below=2), {"dp": S(0)})
    weight = spmd.assert_type(given("weight", (3, 4), wants=True), {"dp": R})
    bias = spmd.assert_type(given("bias", (3,), wants=True), {"dp": R})
    losses = F.cross_entropy(F.linear(x, weight, bias), labels, reduction="none")
    losses = losses * counts
    tokens = spmd.all_reduce(counts.sum(), "dp", src=P, dst=R)
    loss = losses.sum() / tokens
    loss.backward()
    weight.grad = spmd.all_reduce(weight.grad, "dp", src=P, dst=R)
    bias.grad = spmd.all_reduce(bias.grad, "dp", src=P, dst=R)
    torch.optim.SGD([weight, bias], lr=0.5, momentum=0.9).step()
    shown = spmd.all_reduce(loss.detach(), "dp", src=P, dst=R)
    return {
        "loss": spmd.assert_type(shown, {"dp": R}),
        "weight": spmd.assert_type(weight.detach(), {"dp": R}),
        "bias": spmd.assert_type(bias.detach(), {"dp": R}),
    }


@program(GRID)
def regression(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 6)), {"dp": S(0), "tp": S(1)})
    goal = spmd.assert_type(given("goal", (4,)), {"dp": S(0), "tp": R})
    weight = spmd.assert_type(given("weight", (6,), wants=True), {"dp": R, "tp": S(0)})
    bias = spmd.assert_type(given("bias", (1,), wants=True), {"dp": R, "tp": I})
    y = spmd.all_reduce(x @ weight, "tp", src=P, dst=I)
    y = y + bias
    off = y - goal
    rows = spmd.size(x, 0, "dp")
    loss = (off * off).sum() / rows
    loss.backward()
    for each in (weight, bias):
        each.grad = spmd.all_reduce(each.grad, "dp", src=P, dst=R)
    torch.optim.AdamW([weight, bias], lr=0.5).step()
    variance = spmd.all_reduce((off * off).detach().sum(), "dp", src=P, dst=R) / 4
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": I}),
        "deviation": spmd.assert_type(variance.sqrt(), {"dp": R, "tp": I}),
        "weight": spmd.assert_type(weight.detach(), {"dp": R, "tp": S(0)}),
        "bias": spmd.assert_type(bias.detach(), {"dp": R, "tp": I}),
    }


@program(GRID)
def chunked_loss(given: Given) -> Results:
    h = spmd.assert_type(given("h", (2, 4, 4), wants=True), {"dp": S(0), "tp": R})
    head = spmd.assert_type(given("head", (4, 6), wants=True), {"dp": R, "tp": S(1)})
    kept = spmd.assert_type(torch.zeros(2 // spmd.axis_size("dp"), 4, 4, dtype=torch.float64), {"dp": S(0), "tp": P})
    total = torch.zeros((), dtype=torch.float64)
    for start in (0, 2):
        part = h.detach()[:, start : start + 2].requires_grad_()
        y = part @ head
        loss = (y * y * y).sum()
        loss.backward()
        kept[:, start : start + 2] += part.grad
        total = total + loss.detach()
    head.grad = spmd.all_reduce(head.grad, "dp", src=P, dst=R)
    total = spmd.all_reduce(total, "tp", src=P, dst=R)
    total = spmd.all_reduce(total, "dp", src=P, dst=R)
    whole = spmd.all_reduce(kept, "tp", src=P, dst=R)
    return {
        "total": spmd.assert_type(total, {"dp": R, "tp": R}),
        "h.grad": spmd.assert_type(whole, {"dp": S(0), "tp": R}),
        "head.grad": spmd.assert_type(head.grad, {"dp": R, "tp": S(1)}),
    }


@program({"dp": 2, "tp": 2})
def accumulated(given: Given) -> Results:
    x = spmd.assert_type(given("x", (3, 4, 6)), {"dp": S(1), "tp": R})
    weight = spmd.assert_type(given("weight", (6, 4), wants=True), {"dp": R, "tp": S(1)})
    scale = spmd.assert_type(given("scale", (6,), wants=True), {"dp": R, "tp": R})
    optimizer = torch.optim.SGD([weight, scale], lr=0.25)
    for micro in x.unbind(0):
        y = (micro * scale) @ weight
        loss = (y * y).sum() / 12
        loss.backward()
    weight.grad = spmd.all_reduce(weight.grad, "dp", src=P, dst=R)
    scale.grad = spmd.all_reduce(scale.grad, "tp", src=P, dst=R)
    scale.grad = spmd.all_reduce(scale.grad, "dp", src=P, dst=R)
    optimizer.step()
    return {
        "weight": spmd.assert_type(weight.detach(), {"dp": R, "tp": S(1)}),
        "scale": spmd.assert_type(scale.detach(), {"dp": R, "tp": R}),
    }


@program(GRID)
def statistics(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 6), wants=True), {"dp": S(0), "tp": S(1)})
    mean = spmd.assert_type(given("mean", (6,)), {"dp": R, "tp": S(0)})
    seen = spmd.assert_type(given("seen", ()), {"dp": R, "tp": R})
    center = spmd.all_reduce(x.sum(0), "dp", src=P, dst=R) / 4
    y = x - center
    loss = (y * y * y).sum()
    loss.backward()
    with torch.no_grad():
        mean.mul_(0.75).add_(center.detach(), alpha=0.25)
        size = spmd.all_reduce((y * y).sum(), "dp", src=P, dst=R)
        size = spmd.all_reduce(size, "tp", src=P, dst=R)
        seen.copy_(size)
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": S(1)}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": S(1)}),
        "mean": spmd.assert_type(mean, {"dp": R, "tp": S(0)}),
        "seen": spmd.assert_type(seen, {"dp": R, "tp": R}),
    }


@program(GRID)
def whole_step(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 6)), {"dp": S(0), "tp": I})
    goal = spmd.assert_type(given("goal", (4, 6)), {"dp": S(0), "tp": I})
    scale = spmd.assert_type(given("scale", (6,), wants=True), {"dp": R, "tp": I})
    up = spmd.assert_type(given("up", (6, 8), wants=True), {"dp": R, "tp": S(1)})
    down = spmd.assert_type(given("down", (8, 6), wants=True), {"dp": R, "tp": S(0)})
    optimizer = torch.optim.SGD([scale, up, down], lr=0.5)
    h = spmd.convert(F.rms_norm(x, (6,), scale), "tp", src=I, dst=R)
    y = F.silu(h @ up) @ down
    y = spmd.all_reduce(y, "tp", src=P, dst=I)
    off = x + y - goal
    loss = (off * off).sum() / 24
    loss.backward()
    for each in (scale, up, down):
        each.grad = spmd.all_reduce(each.grad, "dp", src=P, dst=R)
    sharded = up.grad.square().sum() + down.grad.square().sum()
    sharded = spmd.all_reduce(sharded, "tp", src=P, dst=R)
    norm = (sharded + scale.grad.square().sum()).sqrt()
    factor = torch.clamp(0.5 / norm, max=1.0)
    for each in (scale, up, down):
        each.grad.mul_(factor)
    optimizer.step()
    shown = spmd.all_reduce(loss.detach(), "dp", src=P, dst=R)
    return {
        "loss": spmd.assert_type(shown, {"dp": R, "tp": I}),
        "norm": spmd.assert_type(norm, {"dp": R, "tp": R}),
        "scale": spmd.assert_type(scale.detach(), {"dp": R, "tp": I}),
        "up": spmd.assert_type(up.detach(), {"dp": R, "tp": S(1)}),
        "down": spmd.assert_type(down.detach(), {"dp": R, "tp": S(0)}),
    }

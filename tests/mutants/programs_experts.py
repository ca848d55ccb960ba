"""Programs of layers of experts: choices, counts, rows in the order of their experts, products of cut experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.models.grouped import grouped_linear
from meshwright.spmd import I, P, R, S
from tests.mutants.program import Given, Results, program


@program({"tp": 2})
def grouped_experts(given: Given) -> Results:
    x = spmd.assert_type(given("x", (6, 4), wants=True), {"tp": I})
    gate = spmd.assert_type(given("gate", (4, 4), wants=True), {"tp": I})
    up = spmd.assert_type(given("up", (4, 6, 4), wants=True), {"tp": S(1)})
    down = spmd.assert_type(given("down", (4, 4, 6), wants=True), {"tp": S(2)})
    share, chosen = torch.softmax(F.linear(x, gate), -1).topk(2, dim=-1)
    order = chosen.flatten().argsort(stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=4)
    ends = counts.cumsum(0).to(torch.int32)
    rows = spmd.convert(x, "tp", src=I, dst=R).repeat_interleave(2, 0)[order]
    y = grouped_linear(torch.tanh(grouped_linear(rows, up, ends)), down, ends)
    y = spmd.all_reduce(y, "tp", src=P, dst=I)
    y = (y[order.argsort()].unflatten(0, (-1, 2)) * share[..., None]).sum(1)
    loss = (y * y).sum()
    loss.backward()
    return {
        "y": spmd.assert_type(y, {"tp": I}),
        "x.grad": spmd.assert_type(x.grad, {"tp": I}),
        "gate.grad": spmd.assert_type(gate.grad, {"tp": I}),
        "up.grad": spmd.assert_type(up.grad, {"tp": S(1)}),
        "down.grad": spmd.assert_type(down.grad, {"tp": S(2)}),
    }


@program({"dp": 2, "tp": 2})
def router_of_groups(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 6, 4), wants=True), {"dp": S(0), "tp": S(1)})
    gate = spmd.assert_type(given("gate", (8, 4), wants=True), {"dp": R, "tp": R})
    bias = spmd.assert_type(given("bias", (8,)), {"dp": R, "tp": R})
    scores = F.linear(x, gate).sigmoid()
    groups = (scores + bias).unflatten(-1, (2, -1))
    best = groups.topk(2, dim=-1)[0].sum(-1).topk(1, dim=-1)[1]
    allowed = torch.zeros_like(groups[..., 0]).scatter(-1, best, 1.0)
    left = groups.masked_fill(allowed.unsqueeze(-1) == 0, float("-inf")).flatten(-2)
    chosen = left.topk(2, dim=-1)[1]
    share = scores.gather(-1, chosen)
    share = share / share.sum(-1, keepdim=True)
    places = chosen.flatten()
    counts = torch.zeros(8, dtype=torch.int64).scatter_add(0, places, torch.ones_like(places))
    counts = spmd.all_reduce(counts, "tp", src=P, dst=R)
    counts = spmd.all_reduce(counts, "dp", src=P, dst=R).double()
    auxiliary = (counts * torch.softmax(scores, -1).sum((0, 1))).sum()
    loss = (share * share).sum() + auxiliary
    loss.backward()
    gate.grad = spmd.all_reduce(gate.grad, "tp", src=P, dst=R)
    gate.grad = spmd.all_reduce(gate.grad, "dp", src=P, dst=R)
    moved = bias + 0.001 * torch.sign(counts.mean() - counts)
    return {
        "share": spmd.assert_type(share, {"dp": S(0), "tp": S(1)}),
        "counts": spmd.assert_type(counts, {"dp": R, "tp": R}),
        "bias": spmd.assert_type(moved, {"dp": R, "tp": R}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": S(1)}),
        "gate.grad": spmd.assert_type(gate.grad, {"dp": R, "tp": R}),
    }

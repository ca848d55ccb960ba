"""Layers of a model over dp and tp: multilayer perceptrons, attention, a whole block, a norm, a gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.spmd import I, P, R, S
from tests.mutants.program import Given, Results, program

GRID = {"dp": 2, "tp": 2}


@program(GRID)
def perceptron(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 6), wants=True), {"dp": S(0), "tp": I})
    up = spmd.assert_type(given("up", (6, 8), wants=True), {"dp": R, "tp": S(1)})
    shift = spmd.assert_type(given("shift", (8,), wants=True), {"dp": R, "tp": S(0)})
    down = spmd.assert_type(given("down", (8, 6), wants=True), {"dp": R, "tp": S(0)})
    bias = spmd.assert_type(given("bias", (6,), wants=True), {"dp": R, "tp": I})
    h = spmd.convert(x, "tp", src=I, dst=R)
    h = F.gelu(h @ up + shift)
    y = h @ down
    y = spmd.all_reduce(y, "tp", src=P, dst=I)
    y = y + bias
    loss = (y * y).sum()
    loss.backward()
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": I}),
        "loss": spmd.assert_type(loss, {"dp": P, "tp": I}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": I}),
        "up.grad": spmd.assert_type(up.grad, {"dp": P, "tp": S(1)}),
        "shift.grad": spmd.assert_type(shift.grad, {"dp": P, "tp": S(0)}),
        "down.grad": spmd.assert_type(down.grad, {"dp": P, "tp": S(0)}),
        "bias.grad": spmd.assert_type(bias.grad, {"dp": P, "tp": I}),
    }


@program({"dp": 2, "tp": 3})
def perceptron_on_a_sequence(given: Given) -> Results:
    x = spmd.assert_type(given("x", (2, 6, 4), wants=True), {"dp": S(0), "tp": S(1)})
    up = spmd.assert_type(given("up", (4, 6), wants=True), {"dp": R, "tp": S(1)})
    down = spmd.assert_type(given("down", (6, 4), wants=True), {"dp": R, "tp": S(0)})
    bias = spmd.assert_type(given("bias", (4,), wants=True), {"dp": R, "tp": R})
    h = spmd.all_gather(x, "tp", src=S(1), dst=R)
    h = F.silu(h @ up)
    y = spmd.reduce_scatter(h @ down, "tp", src=P, dst=S(1))
    y = y + bias
    y = y + x
    loss = (y * y).sum()
    loss.backward()
    bias.grad = spmd.all_reduce(bias.grad, "tp", src=P, dst=R)
    bias.grad = spmd.all_reduce(bias.grad, "dp", src=P, dst=R)
    up.grad = spmd.all_reduce(up.grad, "dp", src=P, dst=R)
    down.grad = spmd.all_reduce(down.grad, "dp", src=P, dst=R)
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": S(1)}),
        "loss": spmd.assert_type(loss, {"dp": P, "tp": P}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": S(1)}),
        "up.grad": spmd.assert_type(up.grad, {"dp": R, "tp": S(1)}),
        "down.grad": spmd.assert_type(down.grad, {"dp": R, "tp": S(0)}),
        "bias.grad": spmd.assert_type(bias.grad, {"dp": R, "tp": R}),
    }


@program(GRID)
def attention(given: Given) -> Results:
    x = spmd.assert_type(given("x", (2, 3, 8), wants=True), {"dp": S(0), "tp": I})
    wq = spmd.assert_type(given("wq", (8, 8), wants=True), {"dp": R, "tp": S(1)})
    wk = spmd.assert_type(given("wk", (8, 8), wants=True), {"dp": R, "tp": S(1)})
    wv = spmd.assert_type(given("wv", (8, 8), wants=True), {"dp": R, "tp": S(1)})
    wo = spmd.assert_type(given("wo", (8, 8), wants=True), {"dp": R, "tp": S(0)})
    scale = spmd.assert_type(given("scale", (2,), wants=True), {"dp": R, "tp": I})
    h = spmd.convert(x, "tp", src=I, dst=R)
    q = (h @ wq).unflatten(-1, (-1, 2)).transpose(1, 2)
    k = (h @ wk).unflatten(-1, (-1, 2)).transpose(1, 2)
    v = (h @ wv).unflatten(-1, (-1, 2)).transpose(1, 2)
    shared = spmd.invariant_to_replicate(scale, "tp")
    q = q * shared
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    a = a.transpose(1, 2).flatten(2)
    y = spmd.all_reduce(a @ wo, "tp", src=P, dst=I)
    y = x + y
    loss = (y * y).sum()
    loss.backward()
    scale.grad = spmd.all_reduce(scale.grad, "dp", src=P, dst=R)
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": I}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": I}),
        "wq.grad": spmd.assert_type(wq.grad, {"dp": P, "tp": S(1)}),
        "wk.grad": spmd.assert_type(wk.grad, {"dp": P, "tp": S(1)}),
        "wv.grad": spmd.assert_type(wv.grad, {"dp": P, "tp": S(1)}),
        "wo.grad": spmd.assert_type(wo.grad, {"dp": P, "tp": S(0)}),
        "scale.grad": spmd.assert_type(scale.grad, {"dp": R, "tp": I}),
    }


@program(GRID)
def block(given: Given) -> Results:
    x = spmd.assert_type(given("x", (2, 4, 8), wants=True), {"dp": S(0), "tp": S(1)})
    first = spmd.assert_type(given("first", (8,), wants=True), {"dp": R, "tp": R})
    second = spmd.assert_type(given("second", (8,), wants=True), {"dp": R, "tp": R})
    qkv = spmd.assert_type(given("qkv", (8, 3, 8), wants=True), {"dp": R, "tp": S(2)})
    out = spmd.assert_type(given("out", (8, 8), wants=True), {"dp": R, "tp": S(0)})
    bias = spmd.assert_type(given("bias", (8,), wants=True), {"dp": R, "tp": R})
    up = spmd.assert_type(given("up", (8, 6), wants=True), {"dp": R, "tp": S(1)})
    down = spmd.assert_type(given("down", (6, 8), wants=True), {"dp": R, "tp": S(0)})
    h = F.rms_norm(x, (8,), first)
    h = spmd.all_gather(h, "tp", src=S(1), dst=R)
    heads = torch.einsum("blh,hcd->cbld", h, qkv).unflatten(-1, (-1, 2)).transpose(2, 3)
    q, k, v = heads.unbind(0)
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    a = a.transpose(1, 2).flatten(2) @ out
    a = spmd.reduce_scatter(a, "tp", src=P, dst=S(1))
    a = a + bias
    x1 = x + a
    h = F.rms_norm(x1, (8,), second)
    h = spmd.all_gather(h, "tp", src=S(1), dst=R)
    h = F.silu(h @ up) @ down
    h = spmd.reduce_scatter(h, "tp", src=P, dst=S(1))
    y = x1 + h
    loss = (y * y).sum()
    loss.backward()
    first.grad = spmd.all_reduce(first.grad, "tp", src=P, dst=R)
    second.grad = spmd.all_reduce(second.grad, "tp", src=P, dst=R)
    bias.grad = spmd.all_reduce(bias.grad, "tp", src=P, dst=R)
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": S(1)}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": S(1)}),
        "first.grad": spmd.assert_type(first.grad, {"dp": P, "tp": R}),
        "second.grad": spmd.assert_type(second.grad, {"dp": P, "tp": R}),
        "bias.grad": spmd.assert_type(bias.grad, {"dp": P, "tp": R}),
        "qkv.grad": spmd.assert_type(qkv.grad, {"dp": P, "tp": S(2)}),
        "out.grad": spmd.assert_type(out.grad, {"dp": P, "tp": S(0)}),
        "up.grad": spmd.assert_type(up.grad, {"dp": P, "tp": S(1)}),
        "down.grad": spmd.assert_type(down.grad, {"dp": P, "tp": S(0)}),
    }


@program(GRID)
def norm_on_a_sequence(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 2, 6)), {"dp": S(1), "tp": S(0)})
    weight = spmd.assert_type(given("weight", (6,), wants=True), {"dp": R, "tp": I})
    shift = spmd.assert_type(given("shift", (6,), wants=True), {"dp": R, "tp": R})
    w = spmd.invariant_to_replicate(weight, "tp")
    y = F.layer_norm(x, (6,), w, shift)
    whole = spmd.all_gather(y, "tp", src=S(0), dst=I)
    loss = (whole * whole * whole).sum()
    loss.backward()
    weight.grad = spmd.all_reduce(weight.grad, "dp", src=P, dst=R)
    shift.grad = spmd.all_reduce(shift.grad, "dp", src=P, dst=R)
    shift.grad = spmd.all_reduce(shift.grad, "tp", src=P, dst=R)
    torch.optim.SGD([weight, shift], lr=0.125).step()
    return {
        "y": spmd.assert_type(y, {"dp": S(1), "tp": S(0)}),
        "weight": spmd.assert_type(weight.detach(), {"dp": R, "tp": I}),
        "shift": spmd.assert_type(shift.detach(), {"dp": R, "tp": R}),
    }


@program(GRID)
def gate(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 6), wants=True), {"dp": S(0), "tp": R})
    router = spmd.assert_type(given("router", (6, 4), wants=True), {"dp": R, "tp": R})
    experts = spmd.assert_type(given("experts", (4, 6, 6), wants=True), {"dp": R, "tp": S(0)})
    scores = torch.softmax(x @ router, -1)
    mine = spmd.convert(scores, "tp", src=R, dst=S(1))
    each = torch.einsum("th,ehk->etk", x, experts)
    y = torch.einsum("te,etk->tk", mine, each)
    y = spmd.all_reduce(y, "tp", src=P, dst=I)
    loss = (y * y).sum()
    loss.backward()
    router.grad = spmd.all_reduce(router.grad, "tp", src=P, dst=R)
    router.grad = spmd.all_reduce(router.grad, "dp", src=P, dst=R)
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": I}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": P}),
        "router.grad": spmd.assert_type(router.grad, {"dp": R, "tp": R}),
        "experts.grad": spmd.assert_type(experts.grad, {"dp": P, "tp": S(0)}),
    }


@program(GRID)
def dropped_out(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 6), wants=True), {"dp": S(0), "tp": I})
    weight = spmd.assert_type(given("weight", (6, 8), wants=True), {"dp": R, "tp": S(1)})
    back = spmd.assert_type(given("back", (8, 6), wants=True), {"dp": R, "tp": S(0)})
    mask = spmd.assert_type(given("mask", (6,)), {"dp": R, "tp": R})
    torch.manual_seed(7)
    keep = F.dropout(mask, 0.5, True)
    h = spmd.convert(x, "tp", src=I, dst=R) * keep
    y = F.relu(h @ weight) @ back
    y = spmd.all_reduce(y, "tp", src=P, dst=I)
    loss = (y * y).sum()
    loss.backward()
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": I}),
        "keep": spmd.assert_type(keep, {"dp": R, "tp": R}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": I}),
        "weight.grad": spmd.assert_type(weight.grad, {"dp": P, "tp": S(1)}),
    }

"""Programs in which tensors change hands: context parallelism, all_to_all, dispatch, custom Functions, gathers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.spmd import I, P, R, S, V
from tests.mutants.program import Given, Results, program

GRID = {"dp": 2, "tp": 2}


@program({"cp": 2, "tp": 2})
def context_attention(given: Given) -> Results:
    x = spmd.assert_type(given("x", (2, 4, 8), wants=True), {"cp": S(1), "tp": I})
    wq = spmd.assert_type(given("wq", (8, 8), wants=True), {"cp": R, "tp": S(1)})
    wk = spmd.assert_type(given("wk", (8, 8), wants=True), {"cp": R, "tp": S(1)})
    wv = spmd.assert_type(given("wv", (8, 8), wants=True), {"cp": R, "tp": S(1)})
    wo = spmd.assert_type(given("wo", (8, 8), wants=True), {"cp": R, "tp": S(0)})
    places = spmd.assert_type(given("places", (4,), below=4), {"cp": S(0), "tp": R})
    h = spmd.convert(x, "tp", src=I, dst=R)
    q = (h @ wq).unflatten(-1, (-1, 4)).transpose(1, 2)
    k = (h @ wk).unflatten(-1, (-1, 4)).transpose(1, 2)
    v = (h @ wv).unflatten(-1, (-1, 4)).transpose(1, 2)
    k = spmd.all_gather(k, "cp", src=S(2), dst=R)
    v = spmd.all_gather(v, "cp", src=S(2), dst=R)
    others = spmd.all_gather(places, "cp", src=S(0), dst=R)
    seen = places[:, None] >= others[None, :]
    a = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    y = a.transpose(1, 2).flatten(2) @ wo
    y = spmd.all_reduce(y, "tp", src=P, dst=I)
    loss = (y * y).sum()
    loss.backward()
    for each in (wq, wk, wv, wo):
        each.grad = spmd.all_reduce(each.grad, "cp", src=P, dst=R)
    return {
        "y": spmd.assert_type(y, {"cp": S(1), "tp": I}),
        "x.grad": spmd.assert_type(x.grad, {"cp": S(1), "tp": I}),
        "wq.grad": spmd.assert_type(wq.grad, {"cp": R, "tp": S(1)}),
        "wk.grad": spmd.assert_type(wk.grad, {"cp": R, "tp": S(1)}),
        "wv.grad": spmd.assert_type(wv.grad, {"cp": R, "tp": S(1)}),
        "wo.grad": spmd.assert_type(wo.grad, {"cp": R, "tp": S(0)}),
    }


@program({"dp": 2, "cp": 2})
def packed_documents(given: Given) -> Results:
    x = spmd.assert_type(given("x", (2, 4, 6), wants=True), {"dp": S(0), "cp": S(1)})
    document = spmd.assert_type(given("document", (2, 4), below=2), {"dp": S(0), "cp": S(1)})
    weight = spmd.assert_type(given("weight", (6, 6), wants=True), {"dp": R, "cp": R})
    k = spmd.all_gather(x @ weight, "cp", src=S(1), dst=R)
    all_documents = spmd.all_gather(document, "cp", src=S(1), dst=R)
    scores = torch.einsum("bqd,bkd->bqk", x, k)
    apart = document[:, :, None] != all_documents[:, None, :]
    scores = scores.masked_fill(apart, float("-inf"))
    values = spmd.all_gather(x, "cp", src=S(1), dst=R)
    y = torch.softmax(scores, -1) @ values
    loss = (y * y).sum()
    loss.backward()
    weight.grad = spmd.all_reduce(weight.grad, "cp", src=P, dst=R)
    weight.grad = spmd.all_reduce(weight.grad, "dp", src=P, dst=R)
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "cp": S(1)}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "cp": S(1)}),
        "weight.grad": spmd.assert_type(weight.grad, {"dp": R, "cp": R}),
    }


@program(GRID)
def resharded(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 4, 4), wants=True), {"dp": S(2), "tp": S(0)})
    weight = spmd.assert_type(given("weight", (4, 4), wants=True), {"dp": R, "tp": S(0)})
    y = x * 2
    y = spmd.all_to_all(y, "tp", src=S(0), dst=S(1))
    y = y * weight[:, :2].sum(1)[None, :, None]
    y = y.softmax(0)
    y = spmd.redistribute(y, "tp", src=S(1), dst=S(0))
    loss = (y * y * x).sum()
    loss.backward()
    weight.grad = spmd.all_reduce(weight.grad, "dp", src=P, dst=R)
    return {
        "y": spmd.assert_type(y, {"dp": S(2), "tp": S(0)}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(2), "tp": S(0)}),
        "weight.grad": spmd.assert_type(weight.grad, {"dp": R, "tp": S(0)}),
    }


@program(GRID)
def dispatch(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 6), wants=True), {"dp": S(0), "tp": I})
    router = spmd.assert_type(given("router", (6, 4), wants=True), {"dp": R, "tp": I})
    experts = spmd.assert_type(given("experts", (4, 6, 6), wants=True), {"dp": R, "tp": S(0)})
    load = spmd.assert_type(given("load", (4,)), {"dp": R, "tp": R})
    scores = torch.softmax(x @ router, -1)
    best, chosen = scores.max(-1)
    hot = F.one_hot(chosen, 4)
    weights = best[:, None] * hot
    mine = spmd.convert(weights, "tp", src=I, dst=S(1))
    tokens = spmd.convert(x, "tp", src=I, dst=R)
    sent = tokens[:, None, :] * mine[:, :, None]
    y = torch.einsum("teh,ehk->tk", sent, experts)
    y = spmd.all_reduce(y, "tp", src=P, dst=I)
    loss = (y * y).sum()
    loss.backward()
    router.grad = spmd.all_reduce(router.grad, "dp", src=P, dst=R)
    with torch.no_grad():
        used = spmd.all_reduce(hot.sum(0), "dp", src=P, dst=R)
        load.add_(used)
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": I}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": I}),
        "router.grad": spmd.assert_type(router.grad, {"dp": R, "tp": I}),
        "experts.grad": spmd.assert_type(experts.grad, {"dp": P, "tp": S(0)}),
        "load": spmd.assert_type(load, {"dp": R, "tp": R}),
    }


@program(GRID, local=True)
def functions(given: Given) -> Results:
    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return spmd.all_reduce(g, "tp", src=P, dst=I)

        @staticmethod
        def spmd_typecheck(*, x):
            return {"dp": spmd.layout_of(x)["dp"], "tp": R}

    class Leave(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return spmd.all_reduce(x, "tp", src=P, dst=I)

        @staticmethod
        def backward(ctx, g):
            return g

        @staticmethod
        def spmd_typecheck(*, x):
            return {"dp": spmd.layout_of(x)["dp"], "tp": I}

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x * x * g

        @staticmethod
        def spmd_typecheck(*, x):
            return spmd.layout_of(x)

    x = spmd.assert_type(given("x", (4, 6), wants=True), {"dp": S(0), "tp": I})
    up = spmd.assert_type(given("up", (6, 8), wants=True), {"dp": R, "tp": S(1)})
    down = spmd.assert_type(given("down", (8, 6), wants=True), {"dp": R, "tp": S(0)})
    h = Enter.apply(x)
    h = Cube.apply(h @ up)
    y = Leave.apply(h @ down)
    loss = (y * y).sum()
    loss.backward()
    up.grad = spmd.all_reduce(up.grad, "dp", src=P, dst=R)
    down.grad = spmd.all_reduce(down.grad, "dp", src=P, dst=R)
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": I}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": I}),
        "up.grad": spmd.assert_type(up.grad, {"dp": R, "tp": S(1)}),
        "down.grad": spmd.assert_type(down.grad, {"dp": R, "tp": S(0)}),
    }


@program(GRID)
def stored_over_both(given: Given) -> Results:
    x = spmd.assert_type(given("x", (4, 8), wants=True), {"dp": S(0), "tp": R})
    weight = spmd.assert_type(given("weight", (8, 4), wants=True), {"tp": S(0), "dp": S(0)})
    w = spmd.all_gather(weight, "dp", src=S(0), dst=R)
    w = spmd.all_gather(w, "tp", src=S(0), dst=R)
    places = spmd.assert_type(given("places", (8,)), {"dp": S(0), "tp": S(0)})
    placed = spmd.redistribute(places, src={"dp": S(0), "tp": S(0)}, dst={"dp": R, "tp": R})
    y = (x + placed) @ w
    y = spmd.convert(y, "tp", src=R, dst=S(1))
    loss = (y * y).sum()
    loss.backward()
    torch.optim.SGD([weight], lr=0.5).step()
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": S(1)}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": P}),
        "weight": spmd.assert_type(weight.detach(), {"tp": S(0), "dp": S(0)}),
    }


@program(GRID, local=True)
def sequence_in_local_mode(given: Given) -> Results:
    x = spmd.assert_type(given("x", (2, 4, 6), wants=True), {"dp": S(0), "tp": S(1)})
    scale = spmd.assert_type(given("scale", (6,), wants=True), {"dp": R, "tp": I})
    up = spmd.assert_type(given("up", (6, 8), wants=True), {"dp": R, "tp": S(1)})
    down = spmd.assert_type(given("down", (8, 6), wants=True), {"dp": R, "tp": S(0)})
    bias = spmd.assert_type(given("bias", (6,), wants=True), {"dp": R, "tp": I})
    h = x * spmd.invariant_to_replicate(scale, "tp")
    h = spmd.all_gather(h, "tp", src=S(1), dst=R)
    h = torch.tanh(h @ up)
    y = spmd.reduce_scatter(h @ down, "tp", src=P, dst=S(1))
    y = y + spmd.convert(bias, "tp", src=I, dst=R)
    loss = spmd.reinterpret((y * y).sum(), "tp", src=V, dst=P)
    loss.backward()
    for each in (scale, up, down, bias):
        each.grad = spmd.all_reduce(each.grad, "dp", src=P, dst=R)
    return {
        "y": spmd.assert_type(y, {"dp": S(0), "tp": S(1)}),
        "x.grad": spmd.assert_type(x.grad, {"dp": S(0), "tp": S(1)}),
        "scale.grad": spmd.assert_type(scale.grad, {"dp": R, "tp": I}),
        "up.grad": spmd.assert_type(up.grad, {"dp": R, "tp": S(1)}),
        "down.grad": spmd.assert_type(down.grad, {"dp": R, "tp": S(0)}),
        "bias.grad": spmd.assert_type(bias.grad, {"dp": R, "tp": I}),
    }

"""Layers of experts, as people write them, are accepted, and compute what one device does, values and gradients."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from tests.check import moe
from tests.check.moe import ACTIVE, BATCH, EXPERTS, LENGTH, WIDTH, I, P, R, S, V
from tests.denotation import sample

GRIDS = {
    "experts over tp": ParallelismDims(dp_shard=2, tp=2, ep=2),
    "experts over all": ParallelismDims(dp_shard=2, tp=2, ep=4),
    "two by three": ParallelismDims(dp_shard=2, tp=3, ep=1),
    "each expert everywhere": ParallelismDims(dp_shard=2, tp=2),
}
ROUTES = {"softmax": moe.softmax, "in groups": moe.in_groups}


def dispatched(x, share, chosen, up, down):
    """Tokens go to the ranks of their experts, by number, and come back; a region of the sparse mesh."""
    ranks = spmd.axis_size("ep")
    tokens, places = x.flatten(0, 1), chosen.flatten()
    order = torch.argsort(places, stable=True)
    counts = moe.counted(chosen).view(ranks, -1)
    theirs = spmd.all_to_all(counts, "ep", src=V, dst=V)
    send, receive = counts.sum(1).tolist(), theirs.sum(1).tolist()
    rows = tokens.index_select(0, order // ACTIVE)
    rows = spmd.all_to_all(rows, "ep", src=V, dst=V, input_split_sizes=send, output_split_sizes=receive)
    expert = torch.arange(EXPERTS // ranks).repeat(ranks).repeat_interleave(theirs.flatten(), output_size=sum(receive))
    by_expert = expert.argsort(stable=True)
    y = moe.experts(rows[by_expert], up, down, moe.ends(theirs.sum(0)))
    back = torch.empty_like(by_expert)
    back[by_expert] = torch.arange(by_expert.shape[0])
    y = spmd.all_to_all(y[back], "ep", src=V, dst=V, input_split_sizes=receive, output_split_sizes=send)
    y = torch.zeros_like(y).index_copy(0, order, y).unflatten(0, (-1, ACTIVE))
    return (y * share.flatten(0, 1).unsqueeze(-1)).sum(1).view(x.shape)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("grid", GRIDS)
def test_tokens_are_dispatched_to_experts(grid, route):
    dims, choose = GRIDS[grid], ROUTES[route]
    x, weights, seed = sample((BATCH, LENGTH, WIDTH), 7), moe.Weights.drawn(), sample((BATCH, LENGTH, WIDTH), 8)
    whole = [each.clone().requires_grad_() for each in (x, *weights[:3])]
    expected = moe.on_one_device(whole[0], moe.Weights(*whole[1:], weights.bias), choose)
    (expected * seed).sum().backward()

    def program(rank):
        mine, held = moe.part(dims, rank, x, weights)
        dense, sparse = moe.meshes()
        with spmd.set_current_mesh(dense):
            share, chosen = choose(F.linear(mine, held.gate), held.bias)
            assert spmd.layout_of(chosen) == moe.TOKENS
        with spmd.set_current_mesh(sparse), spmd.local():
            y = dispatched(mine, share, chosen, held.up, held.down)
            assert {spmd.layout_of(y)[axis] for axis, ranks in sparse.items() if ranks.size > 1} == {V}
        with spmd.set_current_mesh(dense):
            y = spmd.assert_type(y, moe.TOKENS)
            loss = (y * moe.held(seed, moe.TOKENS, dims, rank, wants=False)).sum()
            assert spmd.layout_of(loss) == {"dp": P, "tp": P}
            loss.backward()
            gate = moe.summed(held.gate.grad, ("dp", "tp"))
        with spmd.set_current_mesh(sparse):
            assert spmd.layout_of(held.up.grad) == {"efsdp": P, "ep": S(0)}
            return y, mine.grad, gate, *(moe.summed(each.grad, ("efsdp",)) for each in (held.up, held.down))

    layouts = (moe.TOKENS, moe.TOKENS, moe.BOTH, moe.HELD, moe.HELD)
    for rank, found in enumerate(moe.on_ranks(dims, program)):
        for layout, mine, one in zip(layouts, found, (expected, *(each.grad for each in whole)), strict=True):
            torch.testing.assert_close(mine, moe.cut(one, layout, dims, rank))


def at_home(x, share, chosen, up, down, product):
    """Every rank has a part of each expert: tokens stay, and are only put in the order of their experts."""
    places = chosen.flatten()
    order = places.argsort(stable=True)
    rows = x.reshape(-1, WIDTH)[order // ACTIVE]
    y = product(rows, up, down, moe.ends(torch.bincount(places, minlength=EXPERTS)))
    y = y[order.argsort()].view(*chosen.shape, WIDTH)
    return (y * share[..., None]).sum(-2)


def with_grouped_mm(rows, up, down, ends):
    return F.grouped_mm(F.silu(F.grouped_mm(rows, up.mT, offs=ends)), down.mT, offs=ends)


def group_by_group(rows, up, down, ends):
    """As it is written where no kernel is at hand."""
    pieces = rows.split(ends.diff(prepend=torch.zeros_like(ends[:1])).tolist())
    return torch.cat([F.silu(piece @ up[n].mT) @ down[n].mT for n, piece in enumerate(pieces)])


PRODUCTS = {"grouped_linear": moe.experts, "grouped_mm": with_grouped_mm, "group by group": group_by_group}


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("tp", [2, 3])
def test_the_products_of_cut_experts_are_owed(tp, product):
    """Tokens, shares and choices are R on tp, the hidden dim of the experts is cut: what comes out is P."""
    dims, single = ParallelismDims(dp_shard=2, tp=tp), product == "grouped_mm"
    x, weights = sample((BATCH, LENGTH, WIDTH), 7), moe.Weights.drawn()
    weights = weights._replace(up=F.pad(weights.up, (0, 0, 0, 18)), down=F.pad(weights.down, (0, 18), value=0.5))
    if single:  # all that torch multiplies, in rows of 16 bytes
        x, weights = x.float(), moe.Weights(*(each.float() for each in weights))
    whole = [each.clone().requires_grad_() for each in (x, weights.up, weights.down)]
    share, chosen = moe.softmax(F.linear(x, weights.gate), weights.bias)
    of_all = moe.Weights(weights.gate, *whole[1:], weights.bias)
    expected = moe.on_one_device(whole[0], of_all, lambda logits, bias: (share, chosen))
    expected.sum().backward()
    layouts = {"dp": S(0), "tp": R}, {"dp": R, "tp": S(1)}, {"dp": R, "tp": S(2)}

    def program(rank):
        every = zip((x, weights.up, weights.down), layouts, strict=True)
        mine, up, down = (moe.held(each, layout, dims, rank) for each, layout in every)
        routes = [moe.held(each, layouts[0], dims, rank, wants=False) for each in (share.to(x.dtype), chosen)]
        with spmd.local():
            y = at_home(mine, *routes, up, down, PRODUCTS[product])
            assert spmd.layout_of(y) == {"dp": V, "tp": P}
        y = spmd.all_reduce(spmd.assert_type(y, {"dp": S(0)}), "tp", src=P, dst=I)
        y.sum().backward()
        return y, moe.summed(mine.grad, ("tp",)), *(moe.summed(each.grad, ("dp",)) for each in (up, down))

    for rank, found in enumerate(moe.on_ranks(dims, program)):
        right = expected, *(each.grad for each in whole)
        for layout, mine, one in zip((layouts[0], *layouts), found, right, strict=True):
            torch.testing.assert_close(mine, moe.cut(one, layout, dims, rank), check_dtype=False)


def test_the_places_of_each_expert_are_looked_for():
    """The loop over experts that is the first to be written."""
    dims = ParallelismDims(dp_shard=2, tp=2)
    x, weights = sample((BATCH, LENGTH, WIDTH), 7), moe.Weights.drawn()
    whole = x.clone().requires_grad_()
    expected = moe.on_one_device(whole, weights, moe.softmax)
    expected.sum().backward()

    def program(rank):
        mine, gate = moe.held(x, moe.TOKENS, dims, rank), moe.held(weights.gate, moe.BOTH, dims, rank)
        up, down = (moe.held(each, moe.BOTH, dims, rank) for each in (weights.up, weights.down))
        share, chosen = moe.softmax(F.linear(mine, gate), weights.bias)
        with spmd.local():
            rows, share, chosen = mine.flatten(0, 1), share.flatten(0, 1), chosen.flatten(0, 1)
            y = torch.zeros_like(rows)
            for expert in range(EXPERTS):
                row, place = torch.where(chosen == expert)
                out = F.silu(rows[row] @ up[expert].mT) @ down[expert].mT
                y = y.index_add(0, row, out * share[row, place, None])
            y = y.view(mine.shape)
        y = spmd.assert_type(y, moe.TOKENS)
        y.sum().backward()
        return y, mine.grad

    for rank, found in enumerate(moe.on_ranks(dims, program)):
        for mine, one in zip(found, (expected, whole.grad), strict=True):
            torch.testing.assert_close(mine, moe.cut(one, moe.TOKENS, dims, rank))


COUNTS = {
    "scattered": moe.counted,
    "scattered ones": lambda chosen: torch.zeros(EXPERTS, dtype=torch.int64).scatter_add_(
        0, chosen.flatten(), torch.ones(chosen.numel(), dtype=torch.int64)
    ),
    "added": lambda chosen: chosen.new_zeros(EXPERTS).index_add_(
        0, chosen.flatten(), torch.ones_like(chosen.flatten())
    ),
    "put": lambda chosen: chosen.new_zeros(EXPERTS).index_put_(
        (chosen.flatten(),), chosen.new_ones(chosen.numel()), accumulate=True
    ),
    "one_hot": lambda chosen: F.one_hot(chosen, EXPERTS).sum((0, 1, 2)),
    "compared": lambda chosen: (chosen.flatten()[:, None] == torch.arange(EXPERTS)).sum(0),
    "bincount": lambda chosen: torch.bincount(chosen.flatten(), minlength=EXPERTS),
    "histc": lambda chosen: torch.histc(chosen.double(), EXPERTS, 0, EXPERTS),
}
"""Each rank counts the tokens that it has: the sum over all that cut them is owed."""


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("tp", [2, 3])
def test_experts_are_counted_and_balanced(tp, count, local):
    """case 22: P where tokens are cut, R where every rank has them; summed once; then the bias is moved."""
    dims = ParallelismDims(dp_shard=2, tp=tp)
    chosen = sample((BATCH, LENGTH, ACTIVE), 3).long() + 4
    whole = torch.bincount(chosen.flatten().clamp(max=EXPERTS - 1), minlength=EXPERTS)

    def program(rank):
        bias = moe.held(torch.zeros(EXPERTS), moe.BOTH, dims, rank, wants=False)
        mine = moe.held(chosen.clamp(max=EXPERTS - 1), moe.TOKENS, dims, rank, wants=False)
        with spmd.local() if local else nullcontext():
            counts = COUNTS[count](mine)
            assert spmd.layout_of(counts) == {"dp": P, "tp": P}
            kept = COUNTS[count](spmd.all_gather(mine, "tp", src=S(1), dst=R))
            assert spmd.layout_of(kept) == {"dp": P, "tp": R}
            counts, kept = moe.summed(counts, ("dp", "tp")).float(), moe.summed(kept, ("dp",))
            with torch.no_grad():
                bias.add_(torch.sign(counts.mean() - counts), alpha=1e-3)
        return counts.long(), kept.long(), bias

    moved = 1e-3 * torch.sign(whole.float().mean() - whole)
    for found in moe.on_ranks(dims, program):
        for mine, one in zip(found, (whole, whole, moved), strict=True):
            assert torch.equal(mine, one.to(mine.dtype))


def test_the_auxiliary_loss_is_a_sum_over_the_tokens_of_all_ranks():
    dims = ParallelismDims(dp_shard=2, tp=3)
    x, gate = sample((BATCH, LENGTH, WIDTH), 7), moe.Weights.drawn().gate

    def auxiliary(x, gate, reduce):
        chances = torch.softmax(F.linear(x, gate), -1)
        counts = reduce(moe.counted(chances.topk(ACTIVE, -1)[1])).to(chances.dtype)
        return (counts * chances.sum((0, 1))).sum() * EXPERTS / (BATCH * LENGTH) ** 2

    whole = gate.clone().requires_grad_()
    expected = auxiliary(x, whole, lambda counts: counts)
    expected.backward()

    def program(rank):
        mine = moe.held(gate, moe.BOTH, dims, rank)
        loss = auxiliary(moe.held(x, moe.TOKENS, dims, rank), mine, lambda counts: moe.summed(counts, ("dp", "tp")))
        loss.backward()
        return moe.summed(loss, ("dp", "tp")), moe.summed(mine.grad, ("dp", "tp"))

    for found in moe.on_ranks(dims, program):
        for mine, one in zip(found, (expected, whole.grad), strict=True):
            torch.testing.assert_close(mine, one)


HEADS, RANK, TURNED = 6, 4, 2


@pytest.mark.parametrize("spread", ["expand", "repeat", "expand_as"])
@pytest.mark.parametrize("tp", [2, 3])
def test_a_rotary_key_is_shared_by_the_heads_of_all_ranks(tp, spread):
    """case 3: c goes up to the heads of each rank, r is the same for all of them."""
    dims = ParallelismDims(tp=tp)
    x, down, up = sample((BATCH, LENGTH, WIDTH), 1), sample((RANK + TURNED, WIDTH), 2), sample((HEADS * 2, RANK), 3)

    def keys(x, down, up, enter):
        c, r = enter(F.linear(x, down)).split([RANK, TURNED], -1)
        own = F.linear(c, up).unflatten(-1, (-1, 2))
        r = r.unsqueeze(2)
        if spread == "expand":
            r = r.expand(-1, -1, own.shape[2], -1)
        elif spread == "repeat":
            r = r.repeat(1, 1, own.shape[2], 1)
        else:
            r = r.expand_as(own)
        return torch.cat([own, r], -1)

    whole = [each.clone().requires_grad_() for each in (x, down, up)]
    expected = keys(*whole, lambda kv: kv)
    seed = sample(expected.shape, 5)
    (expected * seed).sum().backward()
    layouts = {"tp": I}, {"tp": I}, {"tp": S(0)}

    def program(rank):
        held = [moe.held(each, layout, dims, rank) for each, layout in zip((x, down, up), layouts, strict=True)]
        with spmd.local() if spread != "expand_as" else nullcontext():
            found = keys(*held, lambda kv: spmd.convert(kv, "tp", src=I, dst=R))
        found = spmd.assert_type(found, {"tp": S(2)})
        (found * moe.held(seed, {"tp": S(2)}, dims, rank, wants=False)).sum().backward()
        return found, *(each.grad for each in held)

    for rank, found in enumerate(moe.on_ranks(dims, program)):
        right = expected, *(each.grad for each in whole)
        for layout, mine, one in zip(({"tp": S(2)}, *layouts), found, right, strict=True):
            assert torch.equal(mine, moe.cut(one, layout, dims, rank))

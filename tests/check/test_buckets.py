"""Gradients that are reduced together, in one vector, and written back: each is what was reduced."""

from __future__ import annotations

import pytest
import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.comm.grid import ParallelismDims
from meshwright.errors import SpmdTypeError
from tests.check.judged import judged, on, refusal
from tests.denotation import denoted, local, sample

R, I, P, V, S = spmd.R, spmd.I, spmd.P, spmd.V, spmd.S
DIMS = on("tp", 2)
X, W, B = sample((4, 2, 3), 1), sample((3,), 2), sample((2, 3), 3)


def gradients(rank, reduce):
    """Of a norm's weight and bias, over a sequence that is cut."""
    w, b = (spmd.assert_type(each.clone().requires_grad_(), {"tp": R}) for each in (W, B))
    x = spmd.assert_type(local({"tp": S(0)}, X, DIMS, rank), {"tp": S(0)})
    spmd.all_reduce((x * w + b).square().sum(), "tp", src=P, dst=I).backward()
    grads = [w.grad, b.grad]
    flat = reduce(_flatten_dense_tensors(grads))
    for mine, found in zip(grads, _unflatten_dense_tensors(flat, grads), strict=True):
        mine.copy_(found)
    torch.optim.SGD([w, b], lr=1.0).step()
    return w.detach(), b.detach()


def alone():
    w, b = W.clone().requires_grad_(), B.clone().requires_grad_()
    (X * w + b).square().sum().backward()
    return (w - w.grad).detach(), (b - b.grad).detach()


def test_they_are_right_when_the_vector_was_reduced():
    found = judged(lambda rank: gradients(rank, lambda x: spmd.all_reduce(x, "tp", src=P, dst=R)), DIMS)
    for rank in found:
        for mine, whole in zip(rank, alone(), strict=True):
            assert torch.equal(mine, whole)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_parts_of_a_sum_are_no_gradients_for_an_optimizer(scale):
    with pytest.raises(SpmdTypeError) as error:
        judged(lambda rank: gradients(rank, lambda x: x * scale), DIMS)
    for problem in error.value.problems:
        assert problem.code is Code.REDUCED
        assert "P on axis 'tp'" in problem.what


def by_foreach(g, u):
    torch._foreach_copy_([g], [u])


def by_index(g, u):
    g[:] = u


def by_dots(g, u):
    g[...] = u


def by_view(g, u):
    g.view(-1).copy_(u.view(-1))


def by_view_index(g, u):
    g.reshape(-1)[:] = u.flatten()


def by_data(g, u):
    g.data = u


def by_data_copy(g, u):
    g.data.copy_(u)


def by_data_index(g, u):
    g.data[:, :] = u


def by_detached(g, u):
    g.detach().copy_(u)


def by_aten(g, u):
    torch.ops.aten.copy_.default(g.data, u)


BACK = [
    *(by_foreach, by_index, by_dots, by_view, by_view_index),
    *(by_data, by_data_copy, by_data_index, by_detached, by_aten),
]
GRID = ParallelismDims(dp_shard=2, tp=2)
TOKENS, WEIGHTS = sample((4, 6), 1), (sample((6, 4), 2), sample((6, 2), 3))


def at_once(grads, reduce):
    return _unflatten_dense_tensors(reduce(_flatten_dense_tensors(grads)), grads)


def end_to_end(grads, reduce):
    flat, start, found = reduce(torch.cat([g.reshape(-1) for g in grads])), 0, []
    for g in grads:
        found.append(flat[start : start + g.numel()].view_as(g))
        start += g.numel()
    return found


def in_pieces(grads, reduce):
    flat = reduce(torch.hstack([g.view(-1) for g in grads]))
    return [part.view_as(g) for part, g in zip(flat.split([g.numel() for g in grads]), grads, strict=True)]


def narrowed(grads, reduce):
    flat = reduce(torch.nn.utils.parameters_to_vector(grads))
    first = grads[0].numel()
    parts = flat.narrow(0, 0, first), flat.narrow(0, first, grads[1].numel())
    return [part.view(g.shape) for part, g in zip(parts, grads, strict=True)]


WAYS = [at_once, end_to_end, in_pieces, narrowed]


def step(rank, dim, back, reduce, way=at_once):
    """One step on two weights that are cut along a dim: gradients are reduced over dp in one vector and copied back."""
    x = spmd.assert_type(local({"dp": S(0), "tp": R}, TOKENS, GRID, rank), {"dp": S(0), "tp": R})
    kinds = {"dp": R, "tp": S(dim)}
    weights = [(w if dim else w.T).contiguous() for w in WEIGHTS]
    leaves = [spmd.assert_type(local(kinds, w, GRID, rank).clone().requires_grad_(), kinds) for w in weights]
    sum((x @ (w if dim else w.T)).square().sum() for w in leaves).backward()
    grads = [w.grad for w in leaves]
    with torch.no_grad():
        for mine, found in zip(leaves, way(grads, reduce), strict=True):
            back(mine.grad, found)
    torch.optim.SGD(leaves, lr=1.0).step()
    return [w.detach() if dim else w.detach().T for w in leaves]


def stepped():
    leaves = [w.clone().requires_grad_() for w in WEIGHTS]
    sum((TOKENS @ w).square().sum() for w in leaves).backward()
    return [(w - w.grad).detach() for w in leaves]


def summed(flat):
    return spmd.all_reduce(flat, "dp", src=P, dst=R)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("back", BACK)
def test_what_is_reduced_and_copied_back_is_right(back, dim):
    ranks = judged(lambda rank: step(rank, dim, back, summed), GRID)
    for place, whole in enumerate(stepped()):
        found = denoted({"dp": R, "tp": S(1)}, [rank[place] for rank in ranks], GRID)
        torch.testing.assert_close(found, whole)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_a_vector_is_made_and_taken_apart_in_any_way(way, dim):
    ranks = judged(lambda rank: step(rank, dim, torch.Tensor.copy_, summed, way), GRID)
    for place, whole in enumerate(stepped()):
        found = denoted({"dp": R, "tp": S(1)}, [rank[place] for rank in ranks], GRID)
        torch.testing.assert_close(found, whole)
    with pytest.raises(SpmdTypeError) as error:
        judged(lambda rank: step(rank, dim, torch.Tensor.copy_, lambda flat: flat * 2.0, way), GRID)
    assert {problem.code for problem in error.value.problems} == {Code.REDUCED}


@pytest.mark.parametrize("back", BACK)
def test_what_is_copied_back_unreduced_is_no_gradient(back):
    with pytest.raises(SpmdTypeError) as error:
        judged(lambda rank: step(rank, 1, back, lambda flat: flat * 2.0), GRID)
    assert {problem.code for problem in error.value.problems} == {Code.REDUCED}


def test_the_data_of_data_is_no_gradient():
    """To replace it leaves the gradient what it was."""

    def back(g, u):
        g.data.data = u

    with pytest.raises(SpmdTypeError) as error:
        judged(lambda rank: step(rank, 1, back, summed), GRID)
    assert {problem.code for problem in error.value.problems} == {Code.REDUCED}


NORM = sample((6,), 4)


def of_both(rank, reduced, mended):
    """A weight that is cut over tp and a norm that is not, whose gradients go into one vector."""
    kinds = {"dp": R, "tp": S(1)}, {"dp": R, "tp": R}
    x = spmd.assert_type(local({"dp": S(0), "tp": R}, TOKENS, GRID, rank), {"dp": S(0), "tp": R})
    w, norm = (
        spmd.assert_type(local(kind, each, GRID, rank).clone().requires_grad_(), kind)
        for each, kind in zip((WEIGHTS[0], NORM), kinds, strict=True)
    )
    (x * norm @ w).square().sum().backward()
    if reduced:
        norm.grad = spmd.all_reduce(norm.grad, "tp", src=P, dst=R)
    grads = [w.grad, norm.grad]
    for mine, found in zip(grads, _unflatten_dense_tensors(summed(_flatten_dense_tensors(grads)), grads), strict=True):
        mine.copy_(found)
    if mended:
        norm.grad = spmd.mutate_type(norm.grad, "tp", src=V, dst=R)
    torch.optim.SGD([w, norm], lr=1.0).step()
    return w.detach(), norm.detach()


def test_what_is_cut_and_what_is_not_share_a_vector_when_the_author_says_so():
    w, norm = (each.clone().requires_grad_() for each in (WEIGHTS[0], NORM))
    (TOKENS * norm @ w).square().sum().backward()
    ranks = judged(lambda rank: of_both(rank, True, True), GRID)
    kinds = {"dp": R, "tp": S(1)}, {"dp": R, "tp": R}
    for place, (whole, kind) in enumerate(zip((w, norm), kinds, strict=True)):
        found = denoted(kind, [rank[place] for rank in ranks], GRID)
        torch.testing.assert_close(found, (whole - whole.grad).detach())


def test_a_vector_of_both_is_no_gradient_of_what_the_ranks_hold_alike():
    problem = refusal(lambda rank: of_both(rank, True, False), GRID)
    assert problem.code is Code.REDUCED
    assert "V on axis 'tp'" in problem.what
    assert "mutate_type(p.grad, 'tp', src=V, dst=R)" in problem.fix


def test_a_sum_that_is_owed_goes_into_no_vector_with_what_is_cut():
    assert "'tp'" in refusal(lambda rank: of_both(rank, False, False), GRID).what

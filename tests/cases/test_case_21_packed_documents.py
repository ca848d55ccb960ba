"""Two documents are packed into one sequence that is split over cp: a token of the first does not move the second.

Each rank attends with its own queries to the keys of all; who sees whom is said by documents and places in the whole.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm.grid import DENSE, WORLD
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.parity.step import on_process, own_batches
from meshwright.train.assemble import assemble, local_backend, run_dims
from meshwright.train.data import Batch
from meshwright.train.data.packing import IGNORE
from meshwright.train.step import validate
from tests.cases.backends import everywhere
from tests.check.judged import judged, on, refusal, says
from tests.denotation import local, sample
from tests.marks import slow
from tests.parity.harness import alone_on_cpu, laid_out, small
from tests.processes import ranks

R, P, S = spmd.R, spmd.P, spmd.S
LENGTH = 16


def logits_of_the_model(layout, tokens, positions, documents):
    """[B, L, vocab] of all tokens, put together from the ranks."""
    config = laid_out(small(), **layout)
    dims = run_dims(config)

    def on_rank(rank):
        view = current_mesh()
        run = assemble(config, local_backend(dims, rank, view), view["world"], torch.device("cpu"))
        own = [each.chunk(dims.cp, 1)[view["cp"].index] for each in (tokens, positions, documents)]
        with torch.no_grad():
            return run.model(*own)

    parts = run_ranks(dims, on_rank, {**DENSE, **WORLD})
    of_cp = [torch.cat(parts[place * dims.tp : (place + 1) * dims.tp], 2) for place in range(dims.cp)]
    return torch.cat(of_cp, 1)


def packed(first):
    documents = torch.tensor([[0] * first + [1] * (LENGTH - first)])
    positions = torch.cat([torch.arange(first), torch.arange(LENGTH - first)])[None]
    return positions, documents


@pytest.mark.parametrize("layout", [{}, {"cp": 2}, {"cp": 4}, {"cp": 2, "tp": 2}], ids=str)
@pytest.mark.parametrize("first", [3, 8, 11])
def test_the_model_keeps_them_apart(layout, first):
    """Cuts before, at, and behind a border of ranks."""
    positions, documents = packed(first)
    tokens = torch.randint(60, (1, LENGTH), generator=torch.Generator().manual_seed(first))
    changed = tokens.clone()
    changed[0, 1] += 1
    before, after = (logits_of_the_model(layout, each, positions, documents) for each in (tokens, changed))
    assert torch.equal(before[:, first:], after[:, first:])
    assert not torch.equal(before[:, 1:first], after[:, 1:first])


def losses_of(rank, configs, batches):
    """The mean loss of each batch, by config."""
    runs = ((on_process(rank, config), config) for config in configs)
    return [[validate(run, own_batches(run, config, [batch])) for batch in batches] for run, config in runs]


@pytest.mark.parametrize(
    ("world", "layouts"), [(2, [{"cp": 2}]), slow(4, [{"cp": 4}, {"cp": 2, "pp": 2}])], ids=["two", "four"]
)
def test_on_every_backend_the_loss_of_the_second_does_not_move(world, layouts):
    first, rows = 6, small().training.batch
    positions, documents = (each.expand(rows, LENGTH).contiguous() for each in packed(first))
    tokens = torch.randint(60, (rows, LENGTH), generator=torch.Generator().manual_seed(first))
    changed = tokens.clone()
    changed[:, 1] += 1
    of_second = torch.where(documents == 1, tokens.roll(-1, 1), IGNORE)
    of_first = torch.where(documents == 0, tokens.roll(-1, 1), IGNORE)
    batches = [
        Batch(each, labels, positions, documents) for labels in (of_second, of_first) for each in (tokens, changed)
    ]
    alone = [pytest.approx(validate(alone_on_cpu(small()), [batch]), rel=1e-5) for batch in batches]
    for found in ranks(world).run(losses_of, everywhere(small(), layouts), batches):
        for losses in found:
            assert losses == alone
            assert losses[0] == losses[1]
            assert losses[2] != losses[3]


def attention(q, k, v, places, documents, axis, dims):
    """Queries of this rank, keys and values of all; [heads, L, d]."""

    def program(rank):
        cut = {axis: S(1)}
        mine = [spmd.assert_type(local(cut, each, dims, rank).requires_grad_(), cut) for each in (q, k, v)]
        keys, values = (spmd.all_gather(each, axis, src=S(1), dst=R) for each in mine[1:])
        own_place, own_document = (
            spmd.assert_type(local({axis: S(0)}, each, dims, rank), {axis: S(0)}) for each in (places, documents)
        )
        all_places, all_documents = (spmd.assert_type(each.clone(), {axis: R}) for each in (places, documents))
        sees = (own_document[:, None] == all_documents) & (own_place[:, None] >= all_places)
        out = F.scaled_dot_product_attention(mine[0], keys, values, attn_mask=sees)
        out.square().sum().backward()
        return out.detach(), [each.grad for each in mine]

    return program


@settings(max_examples=8)
@given(
    axis=st.sampled_from(["cp", "tp"]),
    degree=st.sampled_from([1, 2, 3]),
    each=st.integers(1, 3),
    heads=st.integers(1, 2),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_attention_under_the_checker_is_that_of_one_device(axis, degree, each, heads, seed, data):
    length, dims = each * degree, on(axis, degree)
    first = data.draw(st.integers(0, length))
    q, k, v = (sample((heads, length, 4), seed + n) for n in range(3))
    places, documents = torch.arange(length), (torch.arange(length) >= first).long()
    single = [x.clone().requires_grad_() for x in (q, k, v)]
    sees = (documents[:, None] == documents) & (places[:, None] >= places)
    out = F.scaled_dot_product_attention(*single, attn_mask=sees)
    out.square().sum().backward()
    found = judged(attention(q, k, v, places, documents, axis, dims), dims)
    torch.testing.assert_close(torch.cat([mine for mine, _ in found], 1), out.detach())
    for place, x in enumerate(single):
        torch.testing.assert_close(torch.cat([grads[place] for _, grads in found], 1), x.grad)


@pytest.mark.parametrize("how", ["causal", "own keys alone"])
def test_attention_by_places_on_the_rank_is_refused(how):
    q = sample((2, 8, 4), seed=1)

    def program(rank):
        mine = spmd.assert_type(local({"cp": S(1)}, q, on("cp", 2), rank), {"cp": S(1)})
        keys = mine if how == "own keys alone" else spmd.all_gather(mine, "cp", src=S(1), dst=R)
        return F.scaled_dot_product_attention(mine, keys, keys, is_causal=how == "causal")

    says(refusal(program, on("cp", 2)), "cp", "S(1)")

"""One seed gives the same full tensors under every layout: first values depend on name and global index alone."""

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm.grid import DENSE, WORLD
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.train.assemble import assemble, local_backend, run_dims
from tests.cases.backends import everywhere
from tests.cases.drawn import llamas
from tests.check.judged import judged, on, refusal
from tests.denotation import denoted
from tests.parity.harness import alone_on_cpu, global_batch, laid_out, one_device, small
from tests.parity.processes import on_processes

ONE_GENERATOR = threading.Lock()
"""Threads that play ranks share torch's generator: each seeds it and draws before the next does."""


@settings(max_examples=20)
@given(config=llamas(tp=(1, 2, 3, 4, 6), replicas=(1, 2), shards=(1, 2)))
def test_each_rank_starts_with_its_part_of_the_same_tensors(config):
    dims = run_dims(config)
    alone = alone_on_cpu(config).model
    true = dict(alone.named_parameters())

    def check(rank: int) -> int:
        view = current_mesh()
        run = assemble(config, local_backend(dims, rank, view), view["world"], torch.device("cpu"))
        for name, param in run.model.named_parameters():
            info = run.states[name]
            spans = [info.layout.span(dim, n, view.degree, view.index) for dim, n in enumerate(info.shape)]
            assert torch.equal(param, true[name][tuple(slice(span.start, span.stop) for span in spans)]), name
        assert torch.equal(run.model.rope.frequencies, alone.rope.frequencies)
        return sum(param.numel() for param in run.model.parameters())

    held = run_ranks(dims, check, {**DENSE, **WORLD})
    assert len(set(held)) == 1


def test_storage_shards_start_with_the_same_tensors_too():
    """Uneven ones as well: a vocabulary of 70 over 4 ranks is 18, 18, 18 and 16 rows."""
    config = small(dim=36, heads=6, kv_heads=3, hidden=40, vocab=70)
    batches = [global_batch(config)]
    (outcome,) = on_processes([laid_out(config, dp_shard=4)], batches, 4)
    true = one_device(config, batches)
    for name, weight in true.weights.items():
        assert torch.equal(outcome.weights[name], weight), name


@settings(max_examples=15)
@given(
    degree=st.integers(2, 4),
    rows=st.integers(1, 4),
    columns=st.integers(32, 48),
    rate=st.sampled_from([0.3, 0.5, 0.7]),
    seed=st.integers(0, 99),
)
def test_dropout_is_equal_where_ranks_hold_the_same_and_another_on_each_shard(degree, rows, columns, rate, seed):
    """Ranks of R and I draw, with one seed, the mask that one device draws; those of S and V draw each their own."""
    dims, whole = on("tp", degree), torch.ones(rows, columns)

    def dropped(kind, own):
        def program(rank):
            x = spmd.assert_type(whole.clone(), {"tp": kind})
            with ONE_GENERATOR:
                torch.manual_seed(seed + (spmd.axis_index("tp") if own else 0))
                return F.dropout(x, rate)

        return program

    torch.manual_seed(seed)
    true = F.dropout(whole, rate)
    for kind in (spmd.R, spmd.I):
        assert torch.equal(denoted({"tp": kind}, judged(dropped(kind, own=False), dims), dims), true)
        assert "other random numbers on every rank" in refusal(dropped(kind, own=True), dims).what
    for kind in (spmd.S(0), spmd.V):
        parts = judged(dropped(kind, own=True), dims)
        assert all(not torch.equal(one, other) for i, one in enumerate(parts) for other in parts[i + 1 :])


def test_no_two_parameters_start_alike():
    weights = {
        name: param.detach().flatten()[:64]
        for name, param in alone_on_cpu(small()).model.named_parameters()
        if param.dim() == 2
    }
    names = list(weights)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            overlap = torch.corrcoef(torch.stack([weights[one], weights[other]]))[0, 1]
            assert overlap.abs() < 0.6, (one, other)


def test_on_every_backend_and_in_a_pipeline_they_are_the_same():
    """A tied table too, which two stages fill, each for itself."""
    config = small(tied=True)
    batches = [global_batch(config)]
    true = one_device(config, batches)
    for outcome in on_processes(everywhere(config, [{"tp": 2}, {"dp_shard": 2}, {"pp": 2}]), batches, 2):
        for name, weight in true.weights.items():
            assert torch.equal(outcome.weights[name], weight), name

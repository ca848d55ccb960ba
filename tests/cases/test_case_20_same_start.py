"""One seed gives the same full tensors under every layout: first values depend on name and global index alone."""

from __future__ import annotations

import pytest
import torch

from meshwright.comm.grid import DENSE, WORLD
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.train.assemble import assemble, local_backend, run_dims
from tests.parity.harness import alone_on_cpu, global_batch, laid_out, one_device, small
from tests.parity.processes import on_processes

LAYOUTS = [{"tp": 2}, {"tp": 3}, {"tp": 8}, {"dp_shard": 2}, {"dp_shard": 3, "tp": 2}, {"dp_replicate": 2, "tp": 2}]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_each_rank_starts_with_its_part_of_the_same_tensors(layout):
    numbers = {"dim": 96, "heads": 24, "kv_heads": 6, "hidden": 48, "vocab": 96} if layout.get("tp") == 3 else {}
    config = laid_out(small(**numbers), **layout)
    dims = run_dims(config)
    true = dict(alone_on_cpu(config).model.named_parameters())

    def check(rank: int) -> int:
        view = current_mesh()
        run = assemble(config, local_backend(dims, rank, view), view["world"], torch.device("cpu"))
        for name, param in run.model.named_parameters():
            info = run.states[name]
            spans = [info.layout.span(dim, n, view.degree, view.index) for dim, n in enumerate(info.shape)]
            assert torch.equal(param, true[name][tuple(slice(span.start, span.stop) for span in spans)]), name
        frequencies = run.model.rope.frequencies
        assert torch.equal(frequencies, alone_on_cpu(config).model.rope.frequencies)
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

"""Fewer key/value heads than tp ranks: neighbours share a head, and its gradient is the sum of theirs.

4 ranks, 2 heads, gradients 1, 2 | 3, 4: 3, 3 | 7, 7. A cut inside a head is refused with the legal answers.
"""

from __future__ import annotations

import pytest
import torch

from meshwright.comm.collectives import redistribute
from meshwright.comm.grid import DENSE, WORLD, ParallelismDims
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.errors import ConfigError
from meshwright.train.assemble import assemble, local_backend, run_dims
from meshwright.train.preflight import preflight
from meshwright.types.kinds import P, R
from tests.parity.harness import alone_on_cpu, assert_same, global_batch, laid_out, on_threads, one_device, small


@pytest.mark.parametrize(
    ("tp", "heads", "given", "summed"),
    [
        (4, 2, [1, 2, 3, 4], [3, 3, 7, 7]),
        (6, 2, [1, 2, 3, 4, 5, 6], [6, 6, 6, 15, 15, 15]),
        (4, 1, [1, 2, 3, 4], [10, 10, 10, 10]),
    ],
)
def test_neighbours_sum_the_gradient_of_the_head_that_they_share(tp, heads, given, summed):
    dims = ParallelismDims(tp=tp, tp_copy=tp // heads)
    sums = run_ranks(dims, lambda rank: redistribute(torch.tensor(float(given[rank])), "tp_copy", src=P, dst=R).item())
    assert sums == summed


@pytest.mark.parametrize(("kv_heads", "tp"), [(2, 4), (1, 4), (4, 8), (1, 2)])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_attention_has_the_gradients_of_one_device(kv_heads, tp, sequence_parallel):
    config = small(kv_heads=kv_heads)
    batches = [global_batch(config)]
    mine = on_threads(laid_out(config, tp=tp, sequence_parallel=sequence_parallel), batches)
    assert_same(mine, one_device(config, batches))


@pytest.mark.parametrize(("kv_heads", "tp"), [(2, 4), (2, 8)])
def test_each_rank_holds_one_whole_head_and_neighbours_the_same_one(kv_heads, tp):
    config = laid_out(small(kv_heads=kv_heads), tp=tp)
    dims = run_dims(config)

    def head(rank: int) -> torch.Tensor:
        view = current_mesh()
        run = assemble(config, local_backend(dims, rank, view), view["world"], torch.device("cpu"))
        return run.model.blocks[0].attention.wk.weight.detach()

    whole = alone_on_cpu(config).model.blocks[0].attention.wk.weight.detach()
    size = config.model.head_dim
    for rank, held in enumerate(run_ranks(dims, head, {**DENSE, **WORLD})):
        own = rank * kv_heads // tp
        assert torch.equal(held, whole[own * size : (own + 1) * size])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp", "legal"),
    [
        (8, 4, 3, "1, 2, 4, 8"),
        (12, 4, 3, "1, 2, 4, 12"),
        (12, 3, 2, "1, 3, 6, 12"),
        (6, 2, 4, "1, 2, 6"),
    ],
)
def test_a_cut_inside_a_head_is_refused_with_the_legal_answers(heads, kv_heads, tp, legal):
    config = small(dim=8 * heads, heads=heads, kv_heads=kv_heads, hidden=48, vocab=48)
    config.training.length = 12
    with pytest.raises(ConfigError) as refused:
        preflight(laid_out(config, tp=tp), tp)
    message = str(refused.value)
    assert f"{heads} heads with {kv_heads} key/value heads do not split over tp {tp}" in message
    assert f"one of {legal}" in message
    for fixed in map(int, legal.split(", ")):
        config.training.length = fixed
        if fixed > 1:
            config.model.hidden = config.model.vocab = 48 * fixed
            preflight(laid_out(config, tp=fixed), fixed)

"""Fewer key/value heads than tp ranks: neighbours share a head, and its gradient is the sum of theirs.

4 ranks, 2 heads, gradients 1, 2 | 3, 4: 3, 3 | 7, 7. A cut inside a head is refused with the legal answers.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.comm.collectives import redistribute
from meshwright.comm.grid import DENSE, WORLD, ParallelismDims
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.errors import ConfigError, either
from meshwright.train.assemble import assemble, local_backend, run_dims
from meshwright.train.preflight import preflight
from meshwright.types.kinds import P, R
from tests.cases.drawn import llamas
from tests.denotation import sample
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


@settings(max_examples=20)
@given(
    heads=st.integers(1, 3),
    copies=st.integers(1, 4),
    shape=st.lists(st.integers(0, 3), max_size=2),
    seed=st.integers(0, 99),
)
def test_neighbours_alone_sum_theirs_whatever_the_degrees(heads, copies, shape, seed):
    """The gradient of a whole head, in each rank's part: neighbours hold the sum of theirs and of no others."""
    dims = ParallelismDims(tp=heads * copies, tp_copy=copies)
    parts = sample((heads, copies, *shape), seed)
    sums = run_ranks(
        dims, lambda rank: redistribute(parts[rank // copies, rank % copies].clone(), "tp_copy", src=P, dst=R)
    )
    for rank, found in enumerate(sums):
        assert torch.equal(found, parts[rank // copies].sum(0))


@pytest.mark.parametrize(("kv_heads", "tp"), [(2, 4), (1, 4), (4, 8), (1, 2)])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_attention_has_the_gradients_of_one_device(kv_heads, tp, sequence_parallel):
    config = small(kv_heads=kv_heads)
    batches = [global_batch(config)]
    mine = on_threads(laid_out(config, tp=tp, sequence_parallel=sequence_parallel), batches)
    assert_same(mine, one_device(config, batches))


@settings(max_examples=10)
@given(config=llamas(tp=(2, 3, 4), kv_heads=(1, 2)), seed=st.integers(0, 99))
def test_so_it_has_whatever_the_sizes(config, seed):
    batches = [global_batch(config, seed)]
    assert_same(on_threads(config, batches), one_device(config, batches))


@settings(max_examples=10)
@given(kv_heads=st.integers(1, 3), copies=st.integers(2, 3), groups=st.integers(1, 2), head_dim=st.sampled_from([2, 4]))
def test_each_rank_holds_one_whole_head_and_neighbours_the_same_one(kv_heads, copies, groups, head_dim):
    tp = kv_heads * copies
    heads = tp * groups
    sizes = small(dim=heads * head_dim, layers=1, heads=heads, kv_heads=kv_heads, hidden=2 * tp, vocab=4 * tp)
    config = laid_out(sizes, tp=tp, sequence_parallel=False)
    dims = run_dims(config)

    def head(rank: int) -> torch.Tensor:
        view = current_mesh()
        run = assemble(config, local_backend(dims, rank, view), view["world"], torch.device("cpu"))
        return run.model.blocks["0"].attention.wk.weight.detach()

    whole = alone_on_cpu(config).model.blocks["0"].attention.wk.weight.detach()
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
    assert f"fix: --parallel.tp {either(legal.split(', '))}" in message
    for fixed in map(int, legal.split(", ")):
        config.training.length = fixed
        if fixed > 1:
            config.model.hidden = config.model.vocab = 48 * fixed
            preflight(laid_out(config, tp=fixed), fixed)


@settings(max_examples=25)
@given(kv_heads=st.integers(1, 4), groups=st.integers(1, 4), tp=st.integers(2, 8))
def test_what_is_legal_cuts_no_head_and_leaves_each_query_its_keys(kv_heads, groups, tp):
    """Held against the heads themselves: rank by rank, which queries it has, and which key/value heads those use."""
    heads = kv_heads * groups
    config = small(dim=2 * heads, layers=1, heads=heads, kv_heads=kv_heads, hidden=4 * tp, vocab=4 * tp)
    config.training.length = 2 * tp
    if fits(heads, kv_heads, tp):
        preflight(laid_out(config, tp=tp), tp)
        return
    with pytest.raises(ConfigError) as refused:
        preflight(laid_out(config, tp=tp), tp)
    legal = either(degree for degree in range(1, heads + 1) if fits(heads, kv_heads, degree))
    message = str(refused.value)
    assert f"{heads} heads with {kv_heads} key/value heads do not split over tp {tp}" in message
    assert f"fix: --parallel.tp {legal}\n" in f"{message}\n"


def fits(heads: int, kv_heads: int, tp: int) -> bool:
    """Every rank has as many whole query heads, and as many key/value heads, which are all that its queries use."""
    if heads % tp:
        return False
    queries = heads // tp
    used = [{query * kv_heads // heads for query in range(rank * queries, (rank + 1) * queries)} for rank in range(tp)]
    return len({len(each) for each in used}) == 1 and len(set(map(min, used))) * len(used[0]) == kv_heads

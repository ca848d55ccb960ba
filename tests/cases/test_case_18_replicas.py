"""dp_replicate 2 x dp_shard 2: after steps the replicas are equal bit for bit, on processes and on simulated ranks.

`together` refuses parts that differ in a bit where ranks hold the same elements; that it does is shown here too.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases.backends import everywhere
from tests.cases.drawn import llamas
from tests.cases.mixtures import mixtures
from tests.marks import slow
from tests.models.specs import small_deepseek_v3, small_qwen3_moe
from tests.parity.harness import Part, assert_same, global_batch, laid_out, on_threads, one_device, small, together
from tests.parity.processes import on_processes


def test_replicas_are_equal_bit_for_bit_and_equal_one_device():
    config = small()
    batches = [global_batch(config, 5)]
    layouts = [{"dp_replicate": 2, "dp_shard": 2}, {"dp_replicate": 4}, {"dp_replicate": 2, "tp": 2}]
    true = one_device(config, batches)
    for outcome in on_processes([laid_out(config, **layout) for layout in layouts], batches, 4):
        assert_same(outcome, true)


@settings(max_examples=12)
@given(config=llamas(tp=(1, 2), replicas=(2, 3), shards=(1, 2)), seed=st.integers(0, 99))
def test_whatever_the_sizes_and_the_degrees(config, seed):
    """`on_threads` puts the ranks' tensors together, and fails where two ranks hold an element in other bits."""
    batches = [global_batch(config, seed)]
    assert_same(on_threads(config, batches), one_device(config, batches))


@settings(max_examples=25)
@given(
    values=st.lists(st.floats(-8, 8, width=32, allow_subnormal=False), min_size=1, max_size=6),
    replicas=st.integers(2, 4),
    data=st.data(),
)
def test_replicas_that_differ_in_one_bit_are_noticed(values, replicas, data):
    """The last bit of one element, on one rank, in the weights before or after the step or in the gradients."""
    whole = torch.tensor(values)
    other = whole.clone()
    place = data.draw(st.integers(0, len(values) - 1))
    other[place] = torch.nextafter(whole[place], torch.tensor(torch.inf))
    spans = {"weight": ([range(len(values))], (len(values),))}
    kinds = ("weights", "grads", "updated")

    def part(**differs: torch.Tensor) -> Part:
        return Part(1.0, 1.0, spans, **{kind: {"weight": differs.get(kind, whole)} for kind in kinds})

    assert torch.equal(together([part() for _ in range(replicas)]).updated["weight"], whole)
    parts = [part() for _ in range(replicas)]
    parts[data.draw(st.integers(0, replicas - 1))] = part(**{data.draw(st.sampled_from(kinds)): other})
    with pytest.raises(AssertionError, match="replicas differ"):
        together(parts)


def test_on_every_backend_and_inside_a_pipeline():
    config = small()
    batches = [global_batch(config, 5)]
    layouts = [{"dp_replicate": 2, "dp_shard": 2}, {"dp_replicate": 2, "tp": 2}, {"dp_replicate": 2, "pp": 2}]
    true = one_device(config, batches)
    for outcome in on_processes(everywhere(config, layouts), batches, 4):
        assert_same(outcome, true)


EXPERTS = [
    {"dp_replicate": 2, "dp_shard": 2, "ep": 2},
    {"dp_replicate": 2, "tp": 2, "ep": 2},
    {"dp_replicate": 2, "dp_shard": 2},
    {"dp_shard": 4, "ep": 2},
]


@settings(max_examples=6)
@given(config=mixtures([*EXPERTS, {"dp_replicate": 3, "tp": 2, "ep": 2}]), seed=st.integers(0, 99))
def test_so_are_replicas_of_experts(config, seed):
    batches = [global_batch(config, seed)]
    assert_same(on_threads(config, batches), one_device(config, batches))


@pytest.mark.parametrize("model", [slow(small_qwen3_moe), small_deepseek_v3])
def test_so_are_replicas_of_experts_on_processes(model):
    config = model()
    batches = [global_batch(config, 5)]
    true = one_device(config, batches)
    for outcome in on_processes([laid_out(config, **layout) for layout in EXPERTS], batches, 4):
        assert_same(outcome, true)

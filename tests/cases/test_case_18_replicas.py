"""dp_replicate 2 x dp_shard 2, real processes: after steps the replicas are equal bit for bit.

`together` refuses parts that differ in a bit where ranks hold the same elements; that it does is shown here too.
"""

from __future__ import annotations

import pytest
import torch

from tests.parity.harness import Part, assert_same, global_batch, laid_out, one_device, small, together
from tests.parity.processes import on_processes


def test_replicas_are_equal_bit_for_bit_and_equal_one_device():
    config = small()
    batches = [global_batch(config, 5)]
    layouts = [{"dp_replicate": 2, "dp_shard": 2}, {"dp_replicate": 4}, {"dp_replicate": 2, "tp": 2}]
    true = one_device(config, batches)
    for outcome in on_processes([laid_out(config, **layout) for layout in layouts], batches, 4):
        assert_same(outcome, true)


def test_replicas_that_differ_in_one_bit_are_noticed():
    spans = {"weight": ([range(2)], (2,))}

    def part(last: float) -> Part:
        weight = {"weight": torch.tensor([1.0, last])}
        return Part(1.0, 1.0, spans, weight, weight, weight)

    together([part(2.0), part(2.0)])
    with pytest.raises(AssertionError, match="replicas differ"):
        together([part(2.0), part(torch.nextafter(torch.tensor(2.0), torch.tensor(3.0)).item())])

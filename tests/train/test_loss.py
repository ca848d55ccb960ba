"""Cross entropy with the vocabulary split over ranks is that of one device, in value and gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.backends.parallelize import parallelize
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.train.assemble import local_backend
from meshwright.train.data.packing import IGNORE
from meshwright.train.loss import CrossEntropy, loss_sharding


def split_loss(logits: torch.Tensor, labels: torch.Tensor, tp: int) -> tuple[list[float], torch.Tensor]:
    """The loss on every rank, and the gradient of all logits."""
    dims = ParallelismDims(tp=tp)
    vocab = logits.shape[-1]

    def body(rank: int) -> tuple[float, torch.Tensor]:
        loss = CrossEntropy.Config(vocab=vocab, sharding_config=loss_sharding()).build()
        parallelize(loss, local_backend(dims, rank, current_mesh()))
        mine = logits.chunk(tp, -1)[rank].clone().requires_grad_()
        value = loss(mine, labels)
        value.backward(torch.tensor(0.5))
        return value.item(), mine.grad

    values, grads = zip(*run_ranks(dims, body), strict=True)
    return list(values), torch.cat(grads, -1)


def true_loss(logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, torch.Tensor]:
    whole = logits.clone().requires_grad_()
    value = F.cross_entropy(whole.flatten(0, -2), labels.flatten(), ignore_index=IGNORE, reduction="sum")
    value.backward(torch.tensor(0.5))
    return value.item(), whole.grad


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    tp=st.sampled_from([1, 2, 3, 4]),
    rows=st.integers(1, 3),
    length=st.integers(1, 5),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    shift=st.sampled_from([0.0, 1e4, -1e4]),
    ignored=st.floats(0, 1),
)
def test_it_equals_one_device(seed, tp, rows, length, scale, shift, ignored):
    generator = torch.Generator().manual_seed(seed)
    vocab = 12
    logits = torch.randn(rows, length, vocab, generator=generator, dtype=torch.float32) * scale + shift
    labels = torch.randint(vocab, (rows, length), generator=generator)
    labels[torch.rand(rows, length, generator=generator) < ignored] = IGNORE
    (value, grad), (values, grads) = true_loss(logits, labels), split_loss(logits, labels, tp)
    assert values == [pytest.approx(value, rel=1e-5, abs=1e-6 * rows * length)] * tp
    assert torch.allclose(grads, grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_label_in_every_shard(tp):
    logits = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(8).unsqueeze(0)
    (value, grad), (values, grads) = true_loss(logits, labels), split_loss(logits, labels, tp)
    assert values == [pytest.approx(value, rel=1e-6)] * tp
    assert torch.allclose(grads, grad, atol=1e-7)


@pytest.mark.parametrize("tp", [1, 2])
def test_ignored_tokens_have_no_loss_and_no_gradient(tp):
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    values, grads = split_loss(logits, torch.full((2, 3), IGNORE), tp)
    assert values == [0.0] * tp
    assert not grads.any()


def test_low_precision_logits_are_summed_in_float32():
    logits = torch.randn(1, 64, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    labels = torch.zeros(1, 64, dtype=torch.int64)
    value, _ = true_loss(logits.float(), labels)
    values, grads = split_loss(logits, labels, 2)
    assert values == [pytest.approx(value, rel=1e-6)] * 2
    assert grads.dtype is torch.bfloat16

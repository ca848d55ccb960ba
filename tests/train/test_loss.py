"""Cross entropy over a split vocabulary is that of one device, in value and in gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from meshwright.comm.grid import ParallelismDims
from meshwright.train.data.packing import IGNORE
from meshwright.train.loss import LOSS, CrossEntropy, loss_sharding
from meshwright.types.kinds import I, P
from tests.ranks import alone, on_ranks, refused

VOCAB = 12


def config(vocab=VOCAB):
    return CrossEntropy.Config(vocab=vocab, sharding_config=loss_sharding())


def draw(seed=0, rows=2, length=9, vocab=VOCAB, scale=3.0):
    """Logits, and labels in every shard; some are ignored."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, length, vocab, generator=generator) * scale
    labels = torch.arange(rows * length).view(rows, length) * 5 % vocab
    labels[torch.rand(rows, length, generator=generator) < 0.2] = IGNORE
    return logits, labels


def on_tp(ranks, logits, labels, weight=1.0):
    """The loss on each rank, and the whole gradient of `weight` times it."""

    def program(member):
        mine = logits.chunk(ranks, -1)[member.rank].clone().requires_grad_()
        loss = member.module(mine, labels)
        (loss * weight).backward()
        return loss.detach(), mine.grad

    losses, gradients = zip(*on_ranks(ParallelismDims(tp=ranks), config(logits.shape[-1]), program), strict=True)
    return losses, torch.cat(gradients, -1)


def reference(logits, labels, weight=1.0):
    """In float64."""
    whole = logits.double().requires_grad_()
    loss = F.cross_entropy(whole.flatten(0, -2), labels.flatten(), ignore_index=IGNORE, reduction="sum")
    (loss * weight).backward()
    return loss.detach(), whole.grad


def assert_close(mine, true):
    losses, gradient = mine
    loss, true_gradient = true
    assert all(torch.equal(other, losses[0]) for other in losses)  # I: the same bits on every rank
    assert torch.allclose(losses[0].double(), loss, rtol=1e-6, atol=1e-6)
    assert torch.allclose(gradient.double(), true_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("seed", range(3))
def test_value_and_gradient(ranks, seed):
    logits, labels = draw(seed)
    assert_close(on_tp(ranks, logits, labels), reference(logits, labels))


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("weight", [0.0, -2.0, 1 / 37])
def test_the_gradient_is_linear_in_what_arrives(ranks, weight):
    logits, labels = draw()
    assert_close(on_tp(ranks, logits, labels, weight), reference(logits, labels, weight))


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("label", range(VOCAB))
def test_a_label_in_any_shard(ranks, label):
    logits, _ = draw(rows=1, length=1)
    labels = torch.tensor([[label]])
    assert_close(on_tp(ranks, logits, labels), reference(logits, labels))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rows_that_are_ignored_count_nothing(ranks):
    logits, labels = draw()
    labels[1] = IGNORE
    losses, gradient = on_tp(ranks, logits, labels)
    assert_close((losses, gradient), reference(logits, labels))
    assert (gradient[1] == 0).all()


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_where_all_are_ignored_loss_and_gradient_are_zero_and_never_nan(ranks, scale):
    logits, labels = draw(scale=scale)
    losses, gradient = on_tp(ranks, logits, torch.full_like(labels, IGNORE))
    assert [loss.item() for loss in losses] == [0.0] * ranks
    assert (gradient == 0).all()


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("scale", [1e3, 1e4, 1e30])
def test_large_logits_neither_overflow_nor_lose_the_loss(ranks, scale):
    logits, labels = draw(scale=scale)
    losses, gradient = on_tp(ranks, logits, labels)
    assert_close((losses, gradient), reference(logits, labels))
    assert gradient.isfinite().all()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("offset", [-1e4, 1e4])
def test_an_offset_of_all_logits_changes_nothing(ranks, offset):
    """The largest logit may lie in any shard: all ranks subtract the same one."""
    logits, labels = draw()
    logits = (logits * 8).round() / 8 + offset  # exact in float32
    (loss, *_), _ = on_tp(ranks, logits, labels)
    (centred, *_), _ = on_tp(ranks, logits - offset, labels)
    assert torch.equal(loss, centred)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_token_that_is_ruled_out_has_no_gradient(ranks):
    logits, labels = draw()
    labels[labels == 3] = 4
    logits[..., 3] = -torch.inf
    losses, gradient = on_tp(ranks, logits, labels)
    assert_close((losses, gradient), reference(logits, labels))
    assert (gradient[..., 3] == 0).all()


@pytest.mark.parametrize("ranks", [1, 2])
def test_shorter_logits_are_summed_in_float32(ranks):
    logits, labels = draw()
    short = logits.bfloat16()
    losses, gradient = on_tp(ranks, short, labels)
    loss, true = reference(short.float(), labels)
    assert losses[0].dtype == torch.float32
    assert torch.allclose(losses[0].double(), loss, rtol=1e-6)
    assert gradient.dtype == torch.bfloat16
    assert torch.equal(gradient, true.bfloat16()) or torch.allclose(gradient.double(), true, rtol=2**-8, atol=1e-6)


def test_the_logits_are_not_written_to():
    logits, labels = draw()

    def program(member):
        mine = logits.chunk(2, -1)[member.rank].clone()
        member.module(mine, labels)
        return mine

    assert torch.equal(torch.cat(on_ranks(ParallelismDims(tp=2), config(), program), -1), logits)


def test_over_data_ranks_it_is_a_sum_still_to_be_made():
    """Its parts differ, on each rank of tp they are equal, and together they are the whole."""
    logits, labels = draw(rows=4)
    dims = ParallelismDims(dp_shard=2, tp=2)

    def program(member):
        dp, tp = member.view["dp"], member.view["tp"]
        mine = logits.chunk(2)[dp.index].chunk(2, -1)[tp.index]
        return member.module(mine, labels.chunk(2)[dp.index])

    first, again, second, too = on_ranks(dims, config(), program)
    assert torch.equal(first, again)
    assert torch.equal(second, too)
    assert torch.allclose((first + second).double(), reference(logits, labels)[0])
    assert (LOSS["dp"], LOSS["cp"], LOSS["tp"]) == (P, P, I)


def test_on_one_device_it_is_torchs_own():
    logits, labels = draw()
    loss = alone(config(), lambda member: member.module(logits, labels))
    assert torch.equal(
        loss, F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_its_declaration_is_right(ranks):
    assert refused(config(), ParallelismDims(dp_shard=2, tp=ranks)) == ()

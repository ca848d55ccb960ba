"""Head and loss in parts: which numbers and heads they allow, and what they declare."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.audit.check import check
from meshwright.comm.grid import ParallelismDims
from meshwright.core.sharding import LocalMapConfig
from meshwright.errors import ConfigError, either
from meshwright.models import layouts
from meshwright.models.layers import Linear
from meshwright.models.layouts import Plan, activation
from meshwright.train import chunked as parts
from meshwright.train.chunked import ChunkedHead, chunked
from meshwright.train.config import ComputeConfig
from meshwright.train.data.packing import IGNORE
from meshwright.train.loss import CrossEntropy
from meshwright.train.preflight import preflight
from meshwright.types.kinds import R
from tests.parity.harness import alone_on_cpu, laid_out, small
from tests.ranks import on_ranks, refused

DIM, VOCAB = 6, 12


WHOLE = Plan(sequence_parallel=False)


def config(chunks, *, bias=False, plan=WHOLE):
    head = Linear.Config(in_features=DIM, out_features=VOCAB, bias=bias, sharding_config=layouts.head(plan, bias=bias))
    return chunked(head, chunks)


def draw(rows, length, seed=0):
    """A stream, labels of which some are ignored, and the weight and bias of a head."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, length, DIM, generator=generator)
    labels = torch.randint(VOCAB, (rows, length), generator=generator)
    labels[torch.rand(rows, length, generator=generator) < 0.2] = IGNORE
    return x, labels, torch.randn(VOCAB, DIM, generator=generator), torch.randn(VOCAB, generator=generator)


def reference(x, labels, weight, bias):
    """The loss of all tokens at once, and the gradients of stream, weight and bias."""
    x, weight, bias = (each.clone().requires_grad_() for each in (x, weight, bias))
    loss = CrossEntropy.Config(vocab=VOCAB).build()(x @ weight.T + bias, labels)
    loss.backward()
    return loss.detach(), x.grad, weight.grad, bias.grad


@settings(max_examples=12, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 3, 4]),
    rows=st.integers(1, 3),
    chunks=st.integers(1, 4),
    each=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_loss_and_gradients_are_those_of_all_tokens_at_once(tp, rows, chunks, each, seed):
    x, labels, weight, bias = draw(rows, chunks * each, seed)

    def program(member):
        head, mine = member.module, x.clone().requires_grad_()
        span = slice(head.columns.start, head.columns.stop)
        head.weight.data.copy_(weight[span])
        head.bias.data.copy_(bias[span])
        loss = head(mine, labels)
        loss.backward()
        return loss.detach(), mine.grad, head.weight.grad, head.bias.grad

    ranks = on_ranks(ParallelismDims(tp=tp), config(chunks, bias=True), program)
    losses, streams, weights, biases = zip(*ranks, strict=True)
    found = losses[0], streams[0], torch.cat(weights), torch.cat(biases)
    assert all(torch.equal(each, losses[0]) for each in losses)
    assert all(torch.equal(each, streams[0]) for each in streams)
    for mine, true in zip(found, reference(x, labels, weight, bias), strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("plan", [Plan(), WHOLE], ids=["sequence parallel", "without"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_its_declaration_is_right(tp, plan):
    assert refused(config(2, plan=plan), ParallelismDims(dp_shard=2, cp=2, tp=tp)) == ()


MIXES = [{"tp": 2}, {"tp": 8}, {"dp_shard": 2, "cp": 2, "tp": 2}, {"tp": 2, "sequence_parallel": False}, {"pp": 2}]


@pytest.mark.parametrize("parallel", MIXES, ids=str)
@pytest.mark.parametrize("tied", [False, True])
def test_check_judges_a_step_in_parts_and_trusts_no_more_than_without(parallel, tied):
    whole = laid_out(small(tied=tied), **parallel)
    without, report = check(whole), check(replace(whole, compute=ComputeConfig(loss_chunks=4)))
    assert report.problems == []
    assert report.typed

    def trusted(found):
        return {(each.what, each.where.replace("CrossEntropy", "head")) for each in found.trusted}

    assert trusted(report) == trusted(without)


def test_a_stream_whose_gradient_is_called_replicated_is_refused(monkeypatch):
    """The parts' gradients are each a rank's own columns' part of a sum, and so is what they add up to."""
    true = parts._chunked_sharding

    def labelled(head):
        sharding = true(head)
        region = LocalMapConfig(
            in_grad_shardings={"x": activation(R), "labels": None}, claims=sharding.local_map.claims
        )
        return replace(sharding, local_map=region)

    monkeypatch.setattr(parts, "_chunked_sharding", labelled)
    report = check(replace(laid_out(small(), tp=2), compute=ComputeConfig(loss_chunks=4)))
    assert not report.right
    assert any("head.sharding_config.local_map.in_grad_shardings['x']" in problem.where for problem in report.problems)


@pytest.mark.parametrize(("parallel", "legal"), [({}, "2, 4, 1"), ({"cp": 2}, "2, 4, 1"), ({"tp": 2}, "2, 4, 1")])
def test_chunks_that_do_not_divide_the_tokens_of_a_rank_are_refused_by_run_and_check(parallel, legal):
    wrong = replace(laid_out(small(), **parallel), compute=ComputeConfig(loss_chunks=3))
    with pytest.raises(ConfigError) as refusal:
        preflight(wrong, max(1, *parallel.values()) if parallel else 1)
    assert list(refusal.value.problems) == list(check(wrong).problems)
    (problem,) = refusal.value.problems
    assert problem.where == "compute.loss_chunks"
    assert problem.fix == f"--compute.loss-chunks {either(sorted(map(int, legal.split(', '))))}"
    for chunks in legal.split(", "):
        assert check(replace(wrong, compute=ComputeConfig(loss_chunks=int(chunks)))).right


def test_more_chunks_than_tokens_are_refused():
    (problem,) = check(replace(small(), compute=ComputeConfig(loss_chunks=10**9))).problems
    assert problem.fix == "--compute.loss-chunks 4, 8 or 16"


def test_a_head_of_another_kind_is_refused():
    class Capped(Linear):
        @dataclass(kw_only=True, slots=True)
        class Config(Linear.Config):
            pass

    with pytest.raises(ConfigError, match="4 chunks of a head that is a Capped"):
        chunked(Capped.Config(in_features=DIM, out_features=VOCAB), 4)


def test_one_chunk_is_a_plain_head_and_its_loss():
    whole, in_parts = (alone_on_cpu(replace(small(), compute=ComputeConfig(loss_chunks=n))) for n in (1, 2))
    assert type(whole.model.head) is Linear
    assert type(whole.loss) is CrossEntropy
    assert type(in_parts.model.head) is ChunkedHead
    assert in_parts.loss is None
    assert [name for name, _ in whole.model.named_parameters()] == [
        name for name, _ in in_parts.model.named_parameters()
    ]

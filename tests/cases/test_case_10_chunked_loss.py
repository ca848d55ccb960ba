"""A loss is computed in chunks: the hidden state is R on tp into a head that is split by columns.

What the chunks hand back is each rank's part of the hidden gradient, P on tp; a buffer for it is not R.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from tests.check.judged import judged, on, refusal, says
from tests.denotation import local, sample


def by_writing(chunks, like):
    buffer = torch.zeros_like(like)
    start = 0
    for grad in chunks:
        buffer[start : start + len(grad)] = grad
        start += len(grad)
    return buffer


def by_writing_untyped(chunks, like):
    buffer = torch.zeros(like.shape, dtype=like.dtype)
    start = 0
    for grad in chunks:
        buffer[start : start + len(grad)] = grad
        start += len(grad)
    return buffer


def by_joining(chunks, like):
    return torch.cat(chunks)


COLLECT = [by_writing, by_writing_untyped, by_joining]


def program(whole, head, count, dims, *, collect=by_joining, label=None, buffer=None):
    """Gradient of the hidden state's source, I on tp, from a loss in `count` chunks.

    label: the type that the collected gradient is stated to have; buffer: the type that a buffer is stated to have
    before anything is written into it.
    """

    def gradient(rank):
        source = spmd.assert_type(whole.clone().requires_grad_(), {"tp": spmd.I})
        hidden = spmd.convert(source, "tp", src=spmd.I, dst=spmd.R)
        columns = spmd.assert_type(local({"tp": spmd.S(0)}, head, dims, rank), {"tp": spmd.S(0)})
        collected = []
        for chunk in hidden.detach().chunk(count):
            chunk.requires_grad_()
            loss = (chunk @ columns.T).square().sum()
            loss.backward()
            collected.append(chunk.grad)
        if buffer is not None:
            grad = spmd.assert_type(torch.zeros_like(whole), {"tp": buffer})
            grad[: len(collected[0])] = collected[0]
        else:
            grad = collect(collected, hidden)
        if label is not None:
            spmd.assert_type(grad, {"tp": label})
        hidden.backward(gradient=grad)
        return source.grad

    return gradient


def alone(whole, head):
    hidden = whole.clone().requires_grad_()
    (hidden @ head.T).square().sum().backward()
    return hidden.grad


DIMS = on("tp", 2)
WHOLE, HEAD = sample((4, 3), seed=1), sample((6, 3), seed=2)


@pytest.mark.parametrize("collect", COLLECT)
def test_labelled_replicated_it_is_refused(collect):
    says(refusal(program(WHOLE, HEAD, 2, DIMS, collect=collect, label=spmd.R), DIMS), "tp", "P, R", "state P")


def test_a_buffer_that_is_stated_replicated_takes_no_part_of_a_sum():
    says(refusal(program(WHOLE, HEAD, 2, DIMS, buffer=spmd.R), DIMS), "tp", "P, R", "P -> R")


@pytest.mark.parametrize("collect", COLLECT)
@pytest.mark.parametrize("label", [None, spmd.P])
def test_as_a_part_of_a_sum_it_is_right(collect, label):
    for grad in judged(program(WHOLE, HEAD, 2, DIMS, collect=collect, label=label), DIMS):
        assert torch.equal(grad, alone(WHOLE, HEAD))


@settings(max_examples=8)
@given(
    degree=st.sampled_from([2, 3]),
    count=st.integers(1, 3),
    rows=st.integers(1, 2),
    features=st.integers(1, 4),
    each=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_whatever_the_shape(degree, count, rows, features, each, seed):
    dims = on("tp", degree)
    whole, head = sample((count * rows, features), seed), sample((each * degree, features), seed + 1)
    says(refusal(program(whole, head, count, dims, label=spmd.R), dims), "tp", "P, R")
    for collect in COLLECT:
        for grad in judged(program(whole, head, count, dims, collect=collect), dims):
            assert torch.equal(grad, alone(whole, head))

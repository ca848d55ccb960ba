"""A checkpointed block with a collective by axis name runs again in backward: outside the mesh, and on another thread.

Checked or not, its gradients are those of the block without checkpointing.
"""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import meshwright.spmd as spmd
from meshwright.check import typecheck
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from tests.check.judged import judged, on, refusal, says
from tests.denotation import local, sample

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S


def elsewhere(work):
    """Run by another thread, which has neither a mesh nor a checker."""
    failed = []

    def run():
        try:
            assert current_mesh() is None
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def block(x, weight, axis):
    """Column and row parallel, between I and I."""
    up = spmd.redistribute(x, axis, src=I, dst=R) @ weight.t()
    return spmd.all_reduce(up.sin() @ weight, axis, src=P, dst=I)


def leaves(whole, weight, axis, dims, rank):
    x = spmd.assert_type(whole.clone().requires_grad_(), {axis: I})
    return x, spmd.assert_type(local({axis: S(0)}, weight, dims, rank).requires_grad_(), {axis: S(0)})


def gradients(x, weight):
    return x.grad.clone(), weight.grad.clone()


HOW = {
    "as it is": lambda x, w, axis: block(x, w, axis),
    "reentrant": lambda x, w, axis: checkpoint(block, x, w, axis, use_reentrant=True),
    "not reentrant": lambda x, w, axis: checkpoint(block, x, w, axis, use_reentrant=False),
    "nested": lambda x, w, axis: (
        checkpoint(lambda x, w: checkpoint(block, x, w, axis, use_reentrant=False) * 2.0, x, w, use_reentrant=False)
        / 2.0
    ),
}


def alone(whole, weight):
    x, w = whole.clone().requires_grad_(), weight.clone().requires_grad_()
    ((x @ w.t()).sin() @ w).square().sum().backward()
    return x.grad, w.grad


@settings(max_examples=12)
@given(
    how=st.sampled_from(sorted(HOW)),
    axis=st.sampled_from(["tp", "cp", "dp"]),
    degree=st.sampled_from([1, 2, 3]),
    rows=st.integers(1, 3),
    width=st.integers(1, 3),
    each=st.integers(1, 2),
    checked=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_gradients_are_those_of_one_device(how, axis, degree, rows, width, each, checked, seed):
    dims, whole, weight = on(axis, degree), sample((rows, width), seed), sample((each * degree, width), seed + 1)

    def program(rank):
        x, w = leaves(whole, weight, axis, dims, rank)
        out = HOW[how](x, w, axis)
        if checked:
            assert spmd.layout_of(out) == {axis: I}
        out.square().sum().backward()
        return gradients(x, w)

    expected_x, expected_w = alone(whole, weight)
    found = (judged if checked else lambda program, dims: run_ranks(dims, program))(program, dims)
    for x_grad, _ in found:
        torch.testing.assert_close(x_grad, expected_x)
    torch.testing.assert_close(torch.cat([w_grad for _, w_grad in found]), expected_w)


@pytest.mark.parametrize("how", ["reentrant", "not reentrant", "nested"])
@pytest.mark.parametrize("forward_checked", [False, True])
@pytest.mark.parametrize("thread", [False, True])
def test_backward_behind_the_scope_and_on_another_thread(how, forward_checked, thread):
    """On simulated ranks, whose collectives meet again in backward."""
    dims, whole, weight = on("tp", 2), sample((2, 3), 1), sample((4, 3), 2)

    def program(rank):
        if forward_checked:
            with typecheck():
                x, w = leaves(whole, weight, "tp", dims, rank)
                loss = HOW[how](x, w, "tp").square().sum()
        else:
            x, w = leaves(whole, weight, "tp", dims, rank)
            loss = HOW[how](x, w, "tp").square().sum()
        if thread:
            elsewhere(loss.backward)
        else:
            loss.backward()
        return gradients(x, w)

    expected_x, expected_w = alone(whole, weight)
    found = run_ranks(dims, program)
    torch.testing.assert_close(found[0][0], expected_x)
    torch.testing.assert_close(torch.cat([w_grad for _, w_grad in found]), expected_w)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("thread", [False, True])
def test_backward_outside_set_current_mesh(reentrant, thread):
    x = torch.ones(3, requires_grad=True)
    with spmd.set_current_mesh(spmd.mesh(tp=2)):
        y = checkpoint(lambda x: block(x, torch.ones(2, 3), "tp"), x, use_reentrant=reentrant).sum()
    assert current_mesh() is None
    elsewhere(y.backward) if thread else y.backward()
    assert x.grad is not None


@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
def test_a_wrong_block_is_refused_when_it_first_runs(how):
    def wrong(x, weight, axis):
        return spmd.all_reduce(x @ weight.t(), axis, src=P, dst=I)

    def program(rank):
        x, w = leaves(sample((2, 3), 1), sample((4, 3), 2), "tp", on("tp", 2), rank)
        checkpoint(wrong, x, w, "tp", use_reentrant=how == "reentrant")

    says(refusal(program, on("tp", 2)), "tp", "I, S(1)")

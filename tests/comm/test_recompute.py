"""A checkpointed block that names axes runs again in backward, outside the mesh's scope and on another thread."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import meshwright.spmd as spmd
from meshwright.comm import recompute
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import current_mesh
from meshwright.comm.shapes import mesh
from meshwright.comm.threads import run_ranks

R, P, I = spmd.R, spmd.P, spmd.I


def block(x):
    return spmd.all_reduce(spmd.redistribute(x, "tp", src=I, dst=R).exp().cos(), "tp", src=P, dst=I)


def on_other_thread(work):
    failed = []

    def run():
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed, failed


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("run", [lambda work: work(), on_other_thread])
def test_backward_runs_the_block_again_under_its_own_mesh(reentrant, run):
    x = torch.ones(3, requires_grad=True)
    with spmd.set_current_mesh(mesh(tp=2)):
        y = checkpoint(block, x, use_reentrant=reentrant).sum()
    run(y.backward)
    assert x.grad is not None
    assert current_mesh() is None


def test_the_mesh_is_that_of_the_block_and_not_the_one_of_the_caller_of_backward():
    seen = []

    def look(x):
        seen.append(current_mesh())
        return x.exp().cos()

    x = torch.ones(3, requires_grad=True)
    with spmd.set_current_mesh(mesh(tp=2)) as first:
        y = checkpoint(look, x, use_reentrant=False).sum()
    with spmd.set_current_mesh(mesh(dp=4)) as second:
        y.backward()
        assert current_mesh() is second
    assert seen == [first, first]


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_are_those_without_checkpointing(reentrant):
    def program(rank, through):
        x = (torch.arange(3.0) / 3).requires_grad_()
        through(block, x).sum().backward()
        return x.grad.tolist()

    dims = ParallelismDims(tp=2)
    plain = run_ranks(dims, lambda rank: program(rank, lambda f, x: f(x)))
    again = run_ranks(dims, lambda rank: program(rank, lambda f, x: checkpoint(f, x, use_reentrant=reentrant)))
    assert again == plain


def test_the_private_names_are_those_of_torch():
    import torch.utils.checkpoint as module

    with spmd.set_current_mesh(mesh(tp=2)):
        pass
    there = [name for name in recompute._GENERATORS if hasattr(module, name)]
    assert getattr(module, there[0])._follows_mesh
    assert module.CheckpointFunction.forward._follows_mesh

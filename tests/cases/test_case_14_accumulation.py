"""Gradients are accumulated over steps, each of which scales its own: what is already there is not scaled again.

Two accumulation steps, each of 4 micro-batches and scaled to 1: 2.0, not 1.25.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm.threads import run_ranks
from meshwright.parity.compare import error_of
from meshwright.parity.step import on_process, own_batches
from meshwright.train.stages import ORDERS
from tests.cases.backends import BACKENDS, deep
from tests.check.judged import judged, on, refusal, says
from tests.denotation import sample
from tests.marks import slow
from tests.parity.harness import global_batch, laid_out
from tests.processes import ranks

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S


def accumulated(parts, dims, axis, *, rescale=False, reduce_each=False):
    """parts[step, micro-batch, rank]: what each rank adds to the gradient; a step's own is divided by their number."""

    def program(rank):
        weight = spmd.assert_type(torch.zeros((), dtype=torch.float64).requires_grad_(), {axis: R})
        place = dims.index(rank)[axis]
        for step in parts:
            for micro in step:
                data = spmd.assert_type(micro[place : place + 1].clone(), {axis: S(0)})
                scale = 1 if rescale else len(step)
                ((weight * data).sum() / scale).backward()
            if rescale:
                weight.grad = weight.grad / len(step)
            if reduce_each:
                weight.grad = spmd.all_reduce(weight.grad, axis, src=P, dst=R)
        return weight.grad.item() if reduce_each else spmd.all_reduce(weight.grad, axis, src=P, dst=R).item()

    return program


@pytest.mark.parametrize("degree", [1, 2])
def test_two_steps_of_four_micro_batches_are_two(degree):
    parts = torch.full((2, 4, degree), 1.0 / degree, dtype=torch.float64)
    assert judged(accumulated(parts, on("dp", degree), "dp"), on("dp", degree)) == [2.0] * degree


def test_scaling_what_is_already_there_gives_another_number():
    parts = torch.ones(2, 4, 1, dtype=torch.float64)
    assert run_ranks(on("dp", 1), accumulated(parts, on("dp", 1), "dp", rescale=True)) == [1.25]


def test_a_gradient_is_summed_over_ranks_once_behind_all_steps():
    """A second backward would add parts of a sum to what is a sum already."""
    dims = on("dp", 2)
    parts = torch.ones(2, 1, 2, dtype=torch.float64)
    says(refusal(accumulated(parts, dims, "dp", reduce_each=True), dims), "dp", "R, P", "accumulate first")


@settings(max_examples=10)
@given(
    axis=st.sampled_from(["dp", "cp", "tp"]),
    degree=st.sampled_from([1, 2, 3]),
    steps=st.integers(1, 3),
    micro=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 99),
)
def test_whatever_the_number_of_steps_and_ranks(axis, degree, steps, micro, seed):
    parts = sample((steps, micro, degree), seed)
    dims = on(axis, degree)
    assert judged(accumulated(parts, dims, axis), dims) == [pytest.approx(parts.sum().item() / micro)] * degree


@pytest.mark.parametrize("scale", [lambda: 0.25, lambda: torch.tensor(0.25), lambda: torch.ones(3) / 4])
def test_scaling_and_adding_keep_a_sum_a_sum(scale):
    def program(rank):
        buffer = torch.zeros(3, dtype=torch.float64)
        for _ in range(4):
            part = spmd.assert_type(torch.full((3,), 1.0 + rank, dtype=torch.float64), {"dp": P})
            buffer += part * scale()
        torch._foreach_mul_([buffer], 0.5)
        assert spmd.layout_of(buffer) == {"dp": P}
        return spmd.all_reduce(buffer, "dp", src=P, dst=R).tolist()

    assert judged(program, on("dp", 2)) == [[1.5] * 3] * 2


def two_steps(rank, config, batch):
    """How far each gradient of this rank, after two steps of 4 micro-batches, is from twice what it is after one."""
    run = on_process(rank, config)
    micro = own_batches(run, config, [batch])
    assert len(micro) == 4
    after = []
    with run.backend.scope():
        for _ in range(2):
            run.passes.backward(micro, torch.tensor(3.0))
            after.append({name: _held(run, param) for name, param in run.model.named_parameters()})
    once, twice = after
    return {name: error_of(twice[name], 2.0 * grad) for name, grad in once.items()}


def _held(run, param):
    return run.backend.storage.local(param.grad).clone()


@pytest.mark.parametrize(("world", "inside"), [(2, {}), (4, {"dp_shard": 2}), slow(4, {"tp": 2})], ids=str)
def test_through_a_pipeline_a_second_step_doubles_every_gradient(world, inside):
    """A schedule that rescaled what is there would leave 1.25 times the first."""
    batch = global_batch(deep())
    layouts = [{"schedule": schedule} for schedule in ORDERS] + [{"backend": backend} for backend in BACKENDS[1:]]
    for layout in layouts:
        config = laid_out(deep(), pp=2, micro_batches=4, **inside, **layout)
        for errors in ranks(world).run(two_steps, config, batch):
            assert errors
            assert max(errors.values()) < 1e-5, (layout, errors)

"""What backward starts from: a loss is P or I on each axis. One that is R, V or S has no seed that every rank shares.

`backward`, `autograd.grad` and `torch.autograd.backward`, with a gradient given or not.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from tests.cases.agreement import Held, alternatives, pasted
from tests.check.judged import judged, on, refusal, says
from tests.denotation import denoted, sample

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S
AXES = st.sampled_from(["tp", "cp", "dp"])


def ones(loss):
    """As long as what a rank holds, and no more is known of it."""
    return torch.ones(tuple(map(int, loss.shape)), dtype=loss.dtype)


def by_backward(run):
    def gradient(loss, x):
        run(loss, x)
        return x.grad

    return gradient


WAYS = {
    "backward": by_backward(lambda loss, x: loss.backward()),
    "backward, retained": by_backward(lambda loss, x: loss.backward(retain_graph=True)),
    "backward to inputs": by_backward(lambda loss, x: loss.backward(inputs=[x])),
    "backward, given": by_backward(lambda loss, x: loss.backward(gradient=ones(loss))),
    "backward, given by place": by_backward(lambda loss, x: loss.backward(ones(loss))),
    "Tensor.backward": by_backward(lambda loss, x: torch.Tensor.backward(loss)),
    "autograd.backward": by_backward(lambda loss, x: torch.autograd.backward(loss)),
    "autograd.backward of a list": by_backward(lambda loss, x: torch.autograd.backward([loss])),
    "autograd.backward, given": by_backward(lambda loss, x: torch.autograd.backward([loss], [ones(loss)])),
    "autograd.backward, by name": by_backward(
        lambda loss, x: torch.autograd.backward(tensors=[loss], grad_tensors=[ones(loss)])
    ),
    "grad": lambda loss, x: torch.autograd.grad(loss, x)[0],
    "grad, by name": lambda loss, x: torch.autograd.grad(outputs=[loss], inputs=[x])[0],
    "grad, given": lambda loss, x: torch.autograd.grad(loss, x, ones(loss))[0],
    "grad, given by name": lambda loss, x: torch.autograd.grad(loss, [x], grad_outputs=[ones(loss)])[0],
    "grad of a graph": lambda loss, x: torch.autograd.grad(loss, x, create_graph=True)[0],
}


def program(way, held, dims, axis, calls=()):
    """The gradient of sum(2 x): linear, so that a P of x is one too."""

    def on_rank(rank):
        x = held.on_rank(dims, rank)
        names = {"loss": (x * 2).sum()}
        for call in calls:
            names = pasted(call, names)
        gradient = way(names["loss"], x)
        assert spmd.layout_of(gradient) == {axis: held.layout[axis].dual}
        return gradient.detach()

    return on_rank


@settings(max_examples=25)
@given(axis=AXES, degree=st.sampled_from([1, 2, 3]), way=st.sampled_from(sorted(WAYS)), length=st.integers(1, 4))
def test_a_loss_that_every_rank_has_is_refused_and_is_right_as_parts(axis, degree, way, length):
    dims, held = on(axis, degree), Held(sample((length,), 1), {axis: R})
    problem = refusal(program(WAYS[way], held, dims, axis), dims)
    says(problem, axis, "")
    assert f"the loss is R on axis {axis!r}" in problem.what
    ((fix,),) = alternatives(problem.fix)
    found = judged(program(WAYS[way], held, dims, axis, [fix]), dims)
    assert torch.equal(denoted({axis: P}, found, dims), torch.full((length,), 2.0, dtype=torch.float64))


@settings(max_examples=25)
@given(
    axis=AXES,
    degree=st.sampled_from([1, 2, 3]),
    way=st.sampled_from(sorted(WAYS)),
    kind=st.sampled_from([I, P, S(0)]),
    each=st.integers(1, 3),
)
def test_one_that_is_invariant_or_in_parts_is_accepted_and_right(axis, degree, way, kind, each):
    """The sum over a shard is P."""
    dims, whole = on(axis, degree), sample((each * degree,), 1)
    found = judged(program(WAYS[way], Held(whole, {axis: kind}), dims, axis), dims)
    assert torch.equal(denoted({axis: kind.dual}, found, dims), torch.full_like(whole, 2.0))


@settings(max_examples=15)
@given(axis=AXES, degree=st.sampled_from([1, 2]), way=st.sampled_from(sorted(WAYS)), length=st.integers(1, 3))
def test_a_list_is_refused_and_is_right_when_its_sum_is_claimed(axis, degree, way, length):
    dims, held = on(axis, degree), Held(sample((degree, length), 1), {axis: V})
    problem = refusal(program(WAYS[way], held, dims, axis), dims)
    assert f"the loss is V on axis {axis!r}" in problem.what
    if "given" in way or way == "autograd.backward, by name":
        assert f"assert_type(gradient, {{{axis!r}: V}})" in problem.fix
        return
    ((fix,),) = alternatives(problem.fix)
    judged(program(WAYS[way], held, dims, axis, [fix]), dims)


@pytest.mark.parametrize("way", [name for name in WAYS if "given" in name])
def test_a_shard_of_losses_is_no_loss(way):
    def on_rank(rank):
        x = Held(sample((4,), 1), {"tp": S(0)}).on_rank(on("tp", 2), rank)
        return WAYS[way](x * 2, x)

    assert "the loss is S(0) on axis 'tp'" in refusal(on_rank, on("tp", 2)).what


@pytest.mark.parametrize(("kind", "seed"), [(R, P), (P, R), (I, I), (I, R), (V, V), (S(0), S(0))])
def test_a_gradient_of_the_dual_type_is_accepted(kind, seed):
    def on_rank(rank):
        x = Held(sample((2, 4) if kind is V else (4,), 1), {"tp": kind}).on_rank(on("tp", 2), rank)
        y = x * 2
        y.backward(gradient=spmd.assert_type(ones(y), {"tp": seed}))
        return x.grad

    judged(on_rank, on("tp", 2))


@pytest.mark.parametrize(("kind", "seed"), [(R, R), (R, I), (R, V), (P, P), (P, V), (I, P), (I, V), (V, R), (S(0), R)])
def test_a_gradient_of_another_type_is_refused(kind, seed):
    def on_rank(rank):
        x = Held(sample((2, 4) if kind is V else (4,), 1), {"tp": kind}).on_rank(on("tp", 2), rank)
        y = x * 2
        y.backward(gradient=spmd.assert_type(ones(y), {"tp": seed}))

    problem = refusal(on_rank, on("tp", 2))
    assert f"the loss is {kind!r} on axis 'tp', and the given gradient is {seed!r}" in problem.what


def test_each_axis_counts():
    dims = ParallelismDims(dp_shard=2, tp=2)
    layout = {"dp": P, "tp": R}

    def on_rank(rank, fixed):
        x = Held(sample((3,), 1), layout).on_rank(dims, rank)
        loss = (x * 2).sum()
        if fixed:
            loss = spmd.convert(loss, "tp", src=R, dst=P)
        loss.backward()
        return x.grad

    says(refusal(lambda rank: on_rank(rank, fixed=False), dims), "tp", "R", "convert(loss, 'tp', src=R, dst=P)")
    found = judged(lambda rank: on_rank(rank, fixed=True), dims)
    assert torch.equal(denoted({"dp": R, "tp": P}, found, dims), torch.full((3,), 2.0, dtype=torch.float64))

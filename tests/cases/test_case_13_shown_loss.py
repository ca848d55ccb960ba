"""The loss is P on dp, P on cp and I on tp: whoever shows it reduces exactly the axes on which it is P.

Reducing what is I or R would count it once a rank.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from meshwright.parity.step import on_process, own_batches
from meshwright.train.step import train_step, validate
from tests.cases.backends import everywhere
from tests.check.judged import judged, refusal, says
from tests.denotation import local, sample
from tests.parity.harness import global_batch, one_device, small
from tests.processes import ranks

DIMS = ParallelismDims(dp_shard=2, cp=2, tp=2)
TOKENS = {"dp": spmd.S(0), "cp": spmd.S(1), "tp": spmd.R}
WEIGHT = {"dp": spmd.R, "cp": spmd.R, "tp": spmd.S(0)}
WHOLE, COLUMNS = sample((2, 4, 3), seed=1), sample((4, 3), seed=2)


def token_loss(tokens, weight):
    """Squares of a column-parallel layer, summed over its features by the ranks of tp."""
    squares = (tokens @ weight.T).square().sum(-1)
    return spmd.all_reduce(squares, "tp", src=spmd.P, dst=spmd.I)


def program(show, dims=DIMS, whole=WHOLE, columns=COLUMNS, train=True):
    def step(rank):
        tokens = spmd.assert_type(local(TOKENS, whole, dims, rank), TOKENS)
        weight = spmd.assert_type(local(WEIGHT, columns, dims, rank).requires_grad_(), WEIGHT)
        with torch.set_grad_enabled(train):
            loss = token_loss(tokens, weight).sum()
        if train:
            loss.backward()
            for axis in ("dp", "cp"):
                weight.grad = spmd.all_reduce(weight.grad, axis, src=spmd.P, dst=spmd.R)
        spmd.assert_type(loss, {"dp": spmd.P, "cp": spmd.P, "tp": spmd.I})
        return show(loss.detach()), weight.grad

    return step


def reduced(*axes):
    def show(loss):
        for axis in axes:
            loss = spmd.all_reduce(loss, axis, src=spmd.P, dst=spmd.R)
        return loss.item()

    return show


def alone(whole=WHOLE, columns=COLUMNS):
    weight = columns.clone().requires_grad_()
    loss = (whole @ weight.T).square().sum()
    loss.backward()
    return loss.item(), weight.grad


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("axes", [("dp", "cp"), ("cp", "dp")])
def test_it_is_summed_over_the_axes_on_which_it_is_partial(axes, train):
    expected, _ = alone()
    assert [shown for shown, _ in judged(program(reduced(*axes), train=train), DIMS)] == [expected] * DIMS.world


def test_its_gradients_are_those_of_one_device():
    _, expected = alone()
    for rank, (_, grad) in enumerate(judged(program(reduced("dp", "cp")), DIMS)):
        assert torch.equal(grad, local(WEIGHT, expected, DIMS, rank))


@pytest.mark.parametrize(("axes", "left"), [((), "dp"), (("dp",), "cp"), (("cp",), "dp")])
def test_an_axis_that_is_left_out_is_refused_when_it_is_read(axes, left):
    says(refusal(program(reduced(*axes)), DIMS), left, "P", f"P -> R: all_reduce(x, {left!r}, src=P, dst=R)")


@pytest.mark.parametrize("train", [True, False])
def test_where_it_is_invariant_nothing_is_reduced(train):
    says(refusal(program(reduced("dp", "cp", "tp"), train=train), DIMS), "tp", "P", "leave the call out")


def test_what_was_reduced_is_not_reduced_again():
    says(refusal(program(reduced("dp", "cp", "dp")), DIMS), "dp", "R, P", "leave the call out")


@pytest.mark.parametrize("kind", [spmd.R, spmd.I])
def test_saying_that_it_is_whole_does_not_make_it_reducible(kind):
    def show(loss):
        return spmd.all_reduce(loss, "dp", src=kind, dst=spmd.R)

    says(refusal(program(show), DIMS), "dp", f"{kind!r}")


def test_a_loss_that_is_the_same_on_every_rank_is_no_seed():
    def step(rank):
        tokens = spmd.assert_type(local(TOKENS, WHOLE, DIMS, rank), TOKENS)
        weight = spmd.assert_type(local(WEIGHT, COLUMNS, DIMS, rank).requires_grad_(), WEIGHT)
        loss = token_loss(tokens, weight).sum()
        spmd.all_reduce(loss, "dp", src=spmd.P, dst=spmd.R).backward()

    says(refusal(step, DIMS), "dp", "R", "R -> P")


@settings(max_examples=6)
@given(
    dp=st.sampled_from([1, 2]),
    cp=st.sampled_from([1, 2]),
    tp=st.sampled_from([1, 2]),
    features=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_whatever_the_mesh(dp, cp, tp, features, seed):
    """An axis of one rank has a type too: what is wrong there is wrong on every mesh."""
    dims = ParallelismDims(dp_shard=dp, cp=cp, tp=tp)
    whole, columns = sample((2 * dp, 3 * cp, features), seed), sample((2 * tp, features), seed + 1)
    expected, _ = alone(whole, columns)
    assert [shown for shown, _ in judged(program(reduced("dp", "cp"), dims, whole, columns), dims)] == (
        [expected] * dims.world
    )
    says(refusal(program(reduced("dp", "cp", "tp"), dims, whole, columns), dims), "tp", "P", "leave the call out")
    says(refusal(program(reduced("dp"), dims, whole, columns), dims), "cp", "P", "P -> R")


def shown_by(rank, configs, batches):
    """The loss of a step and, before it, of a validation, by config."""
    found = []
    for config in configs:
        run = on_process(rank, config)
        micro = own_batches(run, config, batches)
        validated = validate(run, micro)
        found.append((train_step(run, micro, step=1, rate=1e-3, max_norm=1.0).loss, validated))
    return found


@pytest.mark.parametrize(
    ("world", "layouts"),
    [(2, [{"dp_shard": 2}, {"cp": 2}, {"tp": 2}, {"pp": 2}]), (4, [{"cp": 2, "pp": 2}, {"dp_replicate": 2, "tp": 2}])],
    ids=["two", "four"],
)
def test_train_and_validation_show_the_loss_of_one_device_on_every_backend_and_every_rank(world, layouts):
    batches = [global_batch(small(), 5)]
    alone = pytest.approx(one_device(small(), batches).loss, rel=1e-6)
    for shown in ranks(world).run(shown_by, everywhere(small(), layouts), batches):
        assert shown == [(alone, alone)] * len(shown)

"""FSDP storage on four real ranks: DTensors on the whole mesh at rest, plain tensors in compute, sums and not means."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.comm.grid import ParallelismDims
from meshwright.train.gradients import Gradients
from meshwright.types.kinds import I, S
from tests.backends import fsdp_programs as programs
from tests.parity.harness import alone_on_cpu, assert_same, global_batch, laid_out, one_device, small, together
from tests.processes import ranks
from tests.ranks import on_ranks

DATA = [
    ParallelismDims(dp_shard=4),
    ParallelismDims(dp_replicate=2, dp_shard=2),
    ParallelismDims(dp_replicate=4),
    ParallelismDims(dp_shard=2, tp=2),
    ParallelismDims(dp_replicate=2, tp=2),
]
LAYOUTS = [
    ({"dp_shard": 2, "tp": 2}, ("dp_shard", "tp_kv")),
    ({"dp_replicate": 2, "dp_shard": 2}, ("dp_replicate", "dp_shard")),
]
BATCHES = [global_batch(small())]


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda param: str(param[0]))
def kinds(request):
    """The types of a run's tensors, equal on all ranks, and the axes of its mesh."""
    layout, mesh = request.param
    found = ranks(4).run(programs.kinds_of_a_step, laid_out(small(), **layout), BATCHES)
    assert found[1:] == found[:-1]
    return found[0], mesh


class TestKinds:
    def test_parameters_gradients_and_optimizer_state_lie_on_the_whole_mesh(self, kinds):
        found, mesh = kinds
        assert found.params.keys() == found.grads.keys()
        assert len(found.optimizer) == 2 * len(found.params)
        for tensors in (found.params, found.grads, found.optimizer):
            assert set(tensors.values()) == {(DTensor, mesh)}

    def test_forward_sees_plain_parameters_and_makes_plain_tensors(self, kinds):
        found, _ = kinds
        assert len(found.seen) == len(found.params)
        assert all(seen == {nn.Parameter} for seen in found.seen.values()), found.seen
        assert found.outputs == {Tensor}


class TestGradients:
    """Rank r contributes r + 1 to every element, in every pass."""

    @pytest.mark.parametrize("dims", DATA, ids=str)
    def test_contributions_are_summed_not_averaged(self, dims):
        for (w, u), _ in ranks(4).run(programs.gradient_of_contributions, dims, 1, [True], range(4)):
            assert set(w.tolist()) == set(u.tolist()) == {10.0}

    @pytest.mark.parametrize("dims", DATA, ids=str)
    @pytest.mark.parametrize("synced", [[False, False, True], [True, True, True], [False, True, True]], ids=str)
    def test_passes_add_up_whether_or_not_each_is_synced(self, dims, synced):
        for (w, u), _ in ranks(4).run(programs.gradient_of_contributions, dims, 3, synced, range(4)):
            assert set(w.tolist()) == set(u.tolist()) == {30.0}

    def test_no_sum_is_made_before_the_last_pass(self):
        synced = [False, False, True]
        assert ranks(4).run(programs.summed_after, ParallelismDims(dp_shard=4), synced) == [synced] * 4

    @pytest.mark.parametrize("dims", DATA, ids=str)
    @pytest.mark.parametrize("users", [[], [1], [0, 3]], ids=str)
    @pytest.mark.parametrize("passes", [1, 2])
    def test_a_parameter_that_a_rank_did_not_use_joins_with_zeros(self, dims, users, passes):
        synced = [False] * (passes - 1) + [True]
        found = ranks(4).run(programs.gradient_of_contributions, dims, passes, synced, users)
        expected = float(passes * sum(rank + 1 for rank in users))
        for (w, u), _ in found:
            assert (set(w.tolist()), set(u.tolist())) == ({10.0 * passes}, {expected})
        norms = {norm for _, norm in found}
        assert len(norms) == 1
        assert norms.pop() == pytest.approx(2 * ((10 * passes) ** 2 + expected**2) ** 0.5)

    @pytest.mark.parametrize("dims", [ParallelismDims(dp_shard=3), ParallelismDims(dp_shard=2, tp=2)], ids=str)
    @pytest.mark.parametrize("users", [[], [1], [0, 1, 2]], ids=str)
    def test_so_it_does_without_fsdp(self, dims, users):
        def program(member):
            member.module(torch.full((1, 4), member.rank + 1.0), member.rank in users).sum().backward()
            gradients = Gradients(member.module, member.backend, member.states, member.view["world"])
            found = gradients.finish()
            return [grad.tolist() for grad in found], gradients.total_norm(found).item()

        w, u = (float(sum(rank + 1 for rank in some)) for some in (range(dims.world), users))
        for grads, norm in on_ranks(dims, programs.sums(), program):
            assert grads == [[w] * 4, [u] * 4]
            assert norm == pytest.approx(2 * (w**2 + u**2) ** 0.5)


def freeze_some(model):
    for name, param in model.named_parameters():
        if "norm" in name or "wq" in name:
            param.requires_grad_(False)


class TestSteps:
    @pytest.mark.parametrize("layout", [layout for layout, _ in LAYOUTS], ids=str)
    def test_replicas_are_equal_bit_for_bit_after_every_step(self, layout):
        found = ranks(4).run(programs.steps_of, laid_out(small(), **layout), BATCHES, 3)
        for step in zip(*(parts for parts, _, _ in found), strict=True):
            together(step)  # asserts it

    @pytest.mark.parametrize("layout", [layout for layout, _ in LAYOUTS], ids=str)
    def test_tied_and_frozen_weights_stay_so_and_train_as_on_one_device(self, layout):
        config = small(tied=True)
        found = ranks(4).run(programs.steps_of, laid_out(config, **layout), BATCHES, 1, freeze_some)
        for _, trained, tied in found:
            assert tied
            assert {name for name, wants in trained.items() if not wants} == {
                name for name in trained if "norm" in name or "wq" in name
            }
        mine = together([parts[0] for parts, _, _ in found])
        assert "head.weight" not in mine.weights
        assert "norm.weight" not in mine.grads
        for name, weight in mine.weights.items():
            assert torch.equal(mine.updated[name], weight) == (name not in mine.grads), name

        alone = alone_on_cpu(config)
        run = programs.assembled(config, alone.backend, alone.gradients.world, freeze_some)
        assert_same(mine, together([programs.step(run, BATCHES)]))

    def test_all_of_it_tied_and_trained_equals_one_device(self):
        config = small(tied=True)
        found = ranks(4).run(programs.steps_of, laid_out(config, dp_shard=2, tp=2), BATCHES, 1)
        assert_same(together([parts[0] for parts, _, _ in found]), one_device(config, BATCHES))


@pytest.mark.parametrize("kind", [I, S(0)])
def test_a_parameter_owes_its_gradient_to_the_axis_that_the_storage_sums_over(kind):
    """Typed otherwise, its gradient would be summed although no sum is pending."""
    for error in ranks(4).run(programs.refused_on_data, ParallelismDims(dp_shard=4), kind):
        assert error.startswith(f"2 problems\n1. w: {kind!r} on 'dp'")
        assert "fix: 'dp': R" in error

"""What is computed does not depend on how: recomputed, compiled, gathered anew, kept on the host."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

from meshwright.train.assemble import assemble, connect
from meshwright.train.compute import problems
from meshwright.train.config import ComputeConfig, ParallelConfig
from meshwright.train.stages import ORDERS
from meshwright.train.step import train_step
from meshwright.train.trainer import split_rows
from tests.marks import first
from tests.parity.harness import global_batch, laid_out, largest_error, rows, small
from tests.parity.processes import on_processes
from tests.processes import ranks

KEPT_OTHERWISE = [
    {"recompute": "full"},
    {"recompute": "selective"},
    {"recompute": "ops"},
    {"offload": True},
    {"reshard": "always"},
    {"reshard": "never"},
]
LAYOUTS = [
    {"dp_shard": 2},
    {"pp": 2, "schedule": "interleaved_1f1b"},
    {"cp": 2, "backend": "full_dtensor"},
    {"tp": 2},
    {"tp": 2, "backend": "partial_dtensor"},
]
COMPILED = [{"cp": 2}, {"tp": 2}, {"dp_shard": 2}, {"pp": 2}]
DTENSORS = [{"tp": 2, "backend": "full_dtensor"}, {"cp": 2, "backend": "full_dtensor"}]


def computed(layout, **compute):
    config = small(layers=4)
    config = replace(config, training=replace(config.training, batch=8), compute=ComputeConfig(**compute))
    return laid_out(config, **layout)


@pytest.fixture(scope="module")
def batches():
    return [global_batch(computed({}), seed) for seed in (0, 1)]


@pytest.mark.parametrize("layout", first(LAYOUTS, 3), ids=str)
def test_what_backward_finds_kept_changes_no_bit(layout, batches):
    plain, *outcomes = on_processes([computed(layout, **how) for how in ({}, *KEPT_OTHERWISE)], batches, 2)
    for how, found in zip(KEPT_OTHERWISE, outcomes, strict=True):
        assert (found.loss, found.grad_norm) == (plain.loss, plain.grad_norm), how
        assert largest_error(found.updated, plain.updated)[0] == 0.0, how


@pytest.mark.parametrize("schedule", ["interleaved_zero_bubble", "zbv"])
def test_whole_blocks_are_recomputed_under_schedules_that_split_backward(schedule, batches):
    layout = {"pp": 2, "schedule": schedule}
    plain, again = on_processes([computed(layout), computed(layout, recompute="full")], batches, 2)
    assert (again.loss, again.grad_norm) == (plain.loss, plain.grad_norm)


@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"tp": 2}, {"pp": 2}])
def test_bfloat16_in_compute_leaves_float32_at_rest_and_agrees_among_backends(layout, batches):
    backends = ("spmd_types", "full_dtensor", "partial_dtensor")
    configs = [computed({**layout, "backend": backend}, precision="bfloat16") for backend in backends]
    plain, erased, *others = on_processes([computed(layout), *configs], batches, 2)
    assert abs(erased.loss - plain.loss) < 0.01 * plain.loss
    assert abs(erased.grad_norm - plain.grad_norm) < 0.01 * plain.grad_norm
    assert largest_error(erased.grads, plain.grads, (2,))[0] < 0.1
    assert erased.loss != plain.loss
    assert {tensor.dtype for tensor in (*erased.updated.values(), *erased.grads.values())} == {torch.float32}
    for other in others:
        assert (other.loss, other.grad_norm) == (erased.loss, erased.grad_norm)


def _steps(rank, config, batches, count):
    """Loss and norm of each step, and how many graphs there were after it."""
    torch._dynamo.reset()
    counters.clear()
    backend, everyone = connect(config, rank, "cpu")
    run = assemble(config, backend, everyone, torch.device("cpu"))
    dp = backend.view["dp"]
    own = [rows(batch, dp.index, dp.size) for batch in batches]
    micro = [part for batch in own for part in split_rows(batch, config.parallel.filling)]
    numbers, graphs = [], []
    for step in range(1, count + 1):
        measured = train_step(run, micro, step=step, rate=1e-3, max_norm=0.5)
        numbers += [measured.loss, measured.grad_norm]
        graphs.append((counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())))
    return numbers, graphs


def assert_compiled_once(config, batches):
    eager = replace(config, compute=replace(config.compute, compile=False))
    true = ranks(2).run(_steps, eager, batches, 4)
    found = ranks(2).run(_steps, config, batches, 4)
    for (numbers, _), (wanted, _) in zip(found, true, strict=True):
        assert numbers == pytest.approx(wanted, rel=1e-5)
    for _, graphs in found:
        assert graphs[0][0] > 0
        assert graphs[-1] == graphs[1]
        assert graphs[-1][1] == 0, "a graph broke inside a block"


@pytest.mark.parametrize("layout", COMPILED, ids=str)
def test_blocks_and_loss_compile_once_for_all_steps(layout, batches):
    assert_compiled_once(computed(layout, compile=True), batches)


@pytest.mark.slow
@pytest.mark.parametrize("layout", DTENSORS, ids=str)
def test_dtensors_compile_once_too(layout, batches):
    assert_compiled_once(computed(layout, compile=True), batches)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["full", "ops"])
def test_recomputed_blocks_compile_too(recompute, batches):
    assert_compiled_once(computed({"tp": 2}, compile=True, recompute=recompute), batches)


def test_what_needs_one_backward_is_refused_where_a_schedule_splits_it():
    wrong = {"compile": True, "recompute": "ops", "reshard": "always"}
    for schedule, pp in itertools.product(ORDERS, (1, 2)):
        config = replace(computed({}, **wrong), parallel=ParallelConfig(dp_shard=2, pp=pp, schedule=schedule))
        found = {problem.where for problem in problems(config)}
        splits = pp > 1 and schedule in ("interleaved_zero_bubble", "zbv")
        assert found == ({f"compute.{name}" for name in wrong} if splits else set())


def test_how_parameters_are_stored_is_not_said_where_nothing_stores_them():
    config = computed({"tp": 2}, reshard="never", reduce_precision="bfloat16")
    assert {problem.where for problem in problems(config)} == {"compute.reshard", "compute.reduce_precision"}
    assert problems(replace(config, compute=replace(config.compute, precision="bfloat16"))) == []

"""The collectives of a step are those of the files, and for `spmd_types` those that `meshwright check` tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import unified_diff
from functools import cache

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.eager_step import fake_world
from benchmarks.moe import dealt_evenly
from meshwright.audit.check import check
from meshwright.train.config import TrainConfig
from tests.backends.collectives.cells import (
    BACKENDS,
    EXPERTS,
    OF_EIGHT,
    PIPELINES,
    REGENERATE,
    Cell,
    calls_of,
    step_of,
    text_of,
)
from tests.backends.collectives.record import OUTSIDE, Called, Recorder, axis_of, merged, same_axis
from tests.processes import ranks

CELLS = [Cell(layout, backend) for layout in (*OF_EIGHT, *EXPERTS, *PIPELINES) for backend in BACKENDS]


@cache
def stages(cell: Cell) -> list[Counter[Called]]:
    """The collectives of the first rank of each stage."""
    if cell.layout in PIPELINES:
        return ranks(4).run(calls_of, cell)[:: cell.dims.world // cell.dims.pp]
    with fake_world(), dealt_evenly():
        return [calls_of(0, cell)]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.layout}-{cell.backend}")
def test_a_step_calls_the_collectives_of_its_file(cell):
    wanted, found = cell.file.read_text(), text_of(cell, stages(cell))
    changed = "".join(unified_diff(wanted.splitlines(True), found.splitlines(True), cell.file.name, "this run", n=0))
    assert not changed, f"{cell.layout}: if it is meant, run `{REGENERATE} {cell.layout}`\n{changed}"


def test_every_file_has_its_cell():
    assert {file for cell in CELLS for file in cell.file.parent.glob("*")} == {cell.file for cell in CELLS}


Rows = dict[tuple[str, str, str, str], tuple[int, int]]
"""Module, pass, op and axis -> how often a rank calls it, and the bytes that it sends in all."""


def rows(found: Iterable[tuple[tuple[str, str, str, str], int, int]]) -> Rows:
    summed: Rows = {}
    for key, times, size in found:
        before = summed.get(key, (0, 0))
        summed[key] = before[0] + times, before[1] + size
    return summed


def told(config: TrainConfig, cell: Cell) -> Rows:
    """By `meshwright check`."""

    def each():
        for row in check(config, "mine", lambda dims: (0,)).traffic:
            outside = row.module == "optimizer"
            ways = (("forward", row.forward, row.sent_forward), ("backward", row.backward, row.sent_backward))
            for way, op, size in ways:
                if op:
                    module = OUTSIDE if outside else merged(row.module)
                    key = module, OUTSIDE if outside else way, op, same_axis(row.axis, cell.dims)
                    yield key, row.count, size

    return rows(each())


def called(calls: Mapping[Called, int]) -> Rows:
    return rows(((one.module, one.way, one.op, one.axis), times, times * one.size) for one, times in calls.items())


@pytest.mark.parametrize("layout", OF_EIGHT)
def test_the_table_of_check_is_what_a_step_calls(layout):
    cell = Cell(layout, "spmd_types")
    (calls,) = stages(cell)
    assert told(cell.config, cell) == called(calls)


@pytest.mark.parametrize("layout", PIPELINES)
def test_the_table_of_a_pipeline_is_what_its_stages_call(layout):
    """It tells of all layers, each of which is on one stage. What is outside of layers is called on every stage; and
    what one stage sends another receives."""
    cell = Cell(layout, "spmd_types")
    by_stage = [called(calls) for calls in stages(cell)]
    modules = rows(
        (key, *found) for part in by_stage for key, found in part.items() if key[0] != OUTSIDE and key[2] != "recv"
    )
    table = told(cell.config, cell)
    assert {key: found for key, found in table.items() if key[0] != OUTSIDE} == modules
    for part in by_stage:
        assert {key for key in part if key[0] == OUTSIDE} == {key for key in table if key[0] == OUTSIDE}


def test_dtensors_call_what_plain_tensors_call():
    """Which files are equal but for their first line."""
    for layout in (*OF_EIGHT, *PIPELINES):
        texts = {Cell(layout, backend).file.read_text().partition("\n")[2] for backend in BACKENDS}
        assert len(texts) == 1, layout


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_profiler_sees_no_other(backend):
    """It stands below every mode, and sees each call of a process group, whoever makes it."""
    cell = Cell("hsdp2x2_tp2" if backend == "spmd_types" else "dp2_tp4", backend)
    with fake_world():
        modules, step = step_of(0, cell)
        step()
        recorder = Recorder(modules, cell.dims)
        with recorder.on():
            step()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:  # a step of its own: a mode calls ops once more
            step()
    names = [event.name for event in profiler.events() if event.name.startswith("c10d::")]
    kinds = {"allgather": "all_gather", "reduce_scatter": "reduce_scatter", "allreduce": "all_reduce"}
    seen = Counter(next((op for part, op in kinds.items() if part in name), name) for name in names)
    assert seen == recorder.by_op()
    assert seen.total() > 20


class Summed(nn.Module):
    """A sum over all ranks that nobody has declared, of what comes in and of its gradient."""

    def forward(self, x):
        return _Sum.apply(x * 2)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _summed(x)

    @staticmethod
    def backward(ctx, grad):
        return _summed(grad)


def _summed(x):
    out = torch.ops._c10d_functional.all_reduce(x, "sum", torch.distributed.group.WORLD.group_name)
    return torch.ops._c10d_functional.wait_tensor(out)


def test_what_is_new_is_seen_with_its_module_in_both_passes():
    model = nn.Sequential(nn.Identity(), Summed())
    dims = Cell("dp2_tp4", "spmd_types").dims
    with fake_world():
        recorder = Recorder([model], dims)
        with recorder.on():
            model(torch.ones(4, requires_grad=True)).sum().backward()
            torch.distributed.all_reduce(torch.ones(2))
    size = 2 * 7 * 16 // 8
    assert recorder.calls == {
        Called("1", "all_reduce", "world", "forward", size): 1,
        Called("1", "all_reduce", "world", "backward", size): 1,
        Called(OUTSIDE, "all_reduce", "world", OUTSIDE, size // 2): 1,
    }


def test_an_op_of_torch_that_nobody_has_named_is_an_error():
    dims = Cell("dp2_tp4", "spmd_types").dims
    with fake_world(), Recorder([], dims), pytest.raises(AssertionError, match="barrier"):
        torch.distributed.barrier()


def test_ranks_have_the_name_of_their_axis():
    dims = Cell("dp2_cp2_tp2", "spmd_types").dims
    assert [axis_of(each, dims) for each in ([0, 1], [0, 2], [0, 4], range(8))] == ["tp", "cp", "dp_shard", "world"]
    assert same_axis("dp", dims) == "dp_shard"
    assert same_axis("cp x tp", dims) == axis_of(range(4), dims)

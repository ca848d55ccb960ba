"""dp 2 x cp 2 x tp 2: ranks of one data coordinate read the same rows, others read different ones; of the rows each cp
rank takes its own part of the sequence."""

from __future__ import annotations

import pytest
import torch

from meshwright.comm.grid import ParallelismDims
from meshwright.comm.shapes import shape_view
from meshwright.train.data import DataConfig, prepare
from meshwright.train.step import own_part

GRIDS = [
    ParallelismDims(dp_shard=2, cp=2, tp=2),
    ParallelismDims(dp_replicate=2, dp_shard=2, tp=2),
    ParallelismDims(dp_replicate=3, tp=4),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(" ".join(f"word{i * j}" for j in range(60)))
    config = DataConfig(path=(str(folder),), vocab=300, cache=str(folder / "cache"))
    return prepare(config, length=16)


@pytest.mark.parametrize("dims", GRIDS, ids=str)
def test_inputs_are_equal_on_tp_and_cp_and_differ_on_dp(dims, corpus):
    degree = dims.degrees()["dp"]

    def first_batches(rank: int) -> torch.Tensor:
        stream = corpus.train(length=16, global_batch=2 * degree, rank=dims.index(rank)["dp"], ranks=degree)
        return torch.cat([next(stream).tokens for _ in range(3)])

    read = [first_batches(rank) for rank in range(dims.world)]
    for a in range(dims.world):
        for b in range(dims.world):
            same = dims.index(a)["dp"] == dims.index(b)["dp"]
            assert torch.equal(read[a], read[b]) is same


@pytest.mark.parametrize("dims", GRIDS, ids=str)
def test_together_they_read_what_one_rank_reads(dims, corpus):
    degree = dims.degrees()["dp"]
    one = next(corpus.train(length=16, global_batch=2 * degree)).tokens
    firsts = {dims.index(rank)["dp"]: rank for rank in reversed(range(dims.world))}
    parts = [
        next(corpus.train(length=16, global_batch=2 * degree, rank=place, ranks=degree)).tokens
        for place in sorted(firsts)
    ]
    assert torch.equal(torch.cat(parts), one)


def test_inputs_are_equal_on_tp_and_differ_on_dp_and_cp(corpus):
    dims = GRIDS[0]

    def part(rank: int) -> torch.Tensor:
        view = shape_view(dims, rank)
        stream = corpus.train(length=16, global_batch=4, rank=view["dp"].index, ranks=view["dp"].size)
        return torch.cat([own_part(next(stream), view["cp"]).tokens for _ in range(3)])

    read = [part(rank) for rank in range(dims.world)]
    places = [{axis: dims.index(rank)[axis] for axis in ("dp", "cp")} for rank in range(dims.world)]
    for a in range(dims.world):
        for b in range(dims.world):
            assert torch.equal(read[a], read[b]) is (places[a] == places[b])

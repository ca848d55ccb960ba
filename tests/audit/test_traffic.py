"""The table of collectives: bytes as by hand, and as many calls as a step on shapes makes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from meshwright.audit.meter import Meter, metered_view, sent
from meshwright.backends.parallelize import parallelize
from meshwright.train.assemble import local_backend, on_meta, run_dims
from tests.audit.recipes import judged, recipe

DIM, HIDDEN, VOCAB, HEADS, KV_HEADS, LENGTH, BATCH = 32, 48, 64, 8, 4, 16, 4
LAYERS, FLOAT, LONG = 5, 4, 8
HEAD = DIM // HEADS
BLOCK = 2 * DIM * DIM + 2 * DIM * KV_HEADS * HEAD + 3 * DIM * HIDDEN + 2 * DIM
"""Parameters of one block."""


def table(config):
    report = judged(config)
    assert report.right
    return {(row.module, row.what, row.axis): row for row in report.traffic}


def sizes(row):
    return row.count, row.forward, row.sent_forward, row.backward, row.sent_backward


def test_tensor_and_sequence_parallel_by_hand():
    rows = table(recipe(tp=2))
    stream = BATCH * LENGTH * DIM * FLOAT  # all of it; with 2 ranks each sends half
    half = stream // 2
    inner = (LAYERS, "all_gather", LAYERS * half, "reduce_scatter", LAYERS * half)
    outer = (LAYERS, "reduce_scatter", LAYERS * half, "all_gather", LAYERS * half)
    assert sizes(rows["embedding", "output", "tp"]) == (1, "reduce_scatter", half, "all_gather", half)
    assert sizes(rows["blocks.0-4.attention", "x", "tp"]) == inner
    assert sizes(rows["blocks.0-4.attention.wo", "output", "tp"]) == outer
    assert sizes(rows["blocks.0-4.feed_forward", "x", "tp"]) == inner
    assert sizes(rows["blocks.0-4.feed_forward.w2", "output", "tp"]) == outer
    assert sizes(rows["head", "x", "tp"]) == (1, "all_gather", half, "reduce_scatter", half)
    tokens = BATCH * LENGTH * FLOAT  # the maximum of each token, then two sums of each: 2 (n - 1) / n times the size
    assert sizes(rows["CrossEntropy", "inside", "tp"]) == (2, "all_reduce", 3 * tokens, "", 0)
    norms = (2 * LAYERS + 1) * DIM * FLOAT
    assert sizes(rows["optimizer", "gradients", "tp"]) == (1, "", 0, "all_reduce", norms)
    assert sizes(rows["optimizer", "norm", "world"]) == (1, "all_reduce", 8, "", 0)
    assert len(rows) == 9


def test_context_parallel_by_hand():
    rows = table(recipe(cp=4))
    documents = BATCH * LENGTH * LONG // 4
    for what in ("key_documents", "key_positions"):
        assert sizes(rows["visible", what, "cp"]) == (1, "all_gather", 3 * documents, "", 0)
    keys = BATCH * LENGTH * KV_HEADS * HEAD * FLOAT // 4
    for what in ("k", "v"):
        row = rows["blocks.0-4.attention.inner", what, "cp"]
        assert sizes(row) == (LAYERS, "all_gather", LAYERS * 3 * keys, "reduce_scatter", LAYERS * 3 * keys)
    weights = (LAYERS * BLOCK + 2 * VOCAB * DIM + DIM) * FLOAT
    assert sizes(rows["optimizer", "gradients", "cp"]) == (1, "", 0, "all_reduce", 2 * 3 * weights // 4)


def test_storage_by_hand():
    config = recipe(dp_replicate=2, dp_shard=2)
    config = replace(config, training=replace(config.training, batch=8, accumulate=2))
    rows = table(config)
    shard = BLOCK * FLOAT // 2
    # gathered for both passes of both micro-batches, summed once
    gathered = 2 * LAYERS * shard
    parameters = rows["blocks.0-4", "parameters", "dp_shard"]
    assert sizes(parameters) == (2 * LAYERS, "all_gather", gathered, "all_gather", gathered)
    assert sizes(rows["blocks.0-4", "gradients", "dp_shard"]) == (LAYERS, "", 0, "reduce_scatter", LAYERS * shard)
    assert sizes(rows["blocks.0-4", "gradients", "dp_replicate"]) == (LAYERS, "", 0, "all_reduce", LAYERS * shard)
    last = rows["norm + head", "parameters", "dp_shard"]
    assert (last.forward, last.backward, last.sent_backward) == ("all_gather", "", 0)  # kept for backward


def test_the_sums_that_storage_makes_are_not_made_again():
    axes = {axis for _, what, axis in table(recipe(dp_shard=2, tp=2)) if what == "gradients"}
    assert axes == {"dp_shard", "tp"}


@pytest.mark.parametrize(
    ("op", "bytes_sent"),
    [("all_gather", 300), ("all_reduce", 150), ("reduce_scatter", 75), ("all_to_all", 75), ("", 0)],
)
def test_bytes_of_one_collective_over_four_ranks(op, bytes_sent):
    assert sent(op, 4, 100) == bytes_sent


@pytest.mark.parametrize(
    "parallel",
    [
        {"tp": 2},
        {"tp": 4, "sequence_parallel": False},
        {"dp_shard": 2, "cp": 2, "tp": 2},
        {"tp": 8},
        {"cp": 4, "tp": 8, "sequence_parallel": False},
    ],
    ids=str,
)
def test_the_table_has_what_forward_and_backward_call(parallel):
    config = recipe(**parallel)
    dims = run_dims(config)
    meter = Meter()
    backend = local_backend(dims, 0, metered_view(dims, 0, meter))
    model, loss = on_meta(config)
    parallelize(model, backend)
    parallelize(loss, backend)
    rows, length = BATCH // (dims.dp_shard * dims.dp_replicate), LENGTH // dims.cp
    tokens = torch.empty(rows, length, dtype=torch.int64, device="meta")
    with backend.scope():
        loss(model(tokens, tokens, tokens), tokens).backward()
    called: dict[tuple[str, str], int] = defaultdict(int)
    for (_, axis, op), (_, size) in (*meter.calls.items(), *meter.backward.items()):
        called[axis, op] += size
    said: dict[tuple[str, str], int] = defaultdict(int)
    for row in judged(config).traffic:
        if row.module != "optimizer" and row.what not in ("parameters", "gradients"):
            said[row.axis, row.forward] += row.sent_forward
            said[row.axis, row.backward] += row.sent_backward
    assert {key: size for key, size in said.items() if key[1]} == dict(called)


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_the_gradient_of_a_tied_table_goes_from_the_first_stage_to_the_last_and_back(schedule):
    """With stages laid in a V both are on one rank."""
    config = recipe(pp=2, schedule=schedule)
    rows = table(replace(config, model=replace(config.model, tied=True)))
    sent = [sizes(row) for row in rows.values() if row.what == "gradient of embedding.weight"]
    assert sent == ([(1, "", 0, "send", VOCAB * DIM * FLOAT)] if schedule == "1f1b" else [])


def test_tensors_cross_in_the_precision_of_compute():
    plain = recipe(tp=2, dp_shard=2)
    rows, halved = (table(replace(plain, compute=replace(plain.compute, precision=p))) for p in ("float32", "bfloat16"))
    for key in (("head", "x", "tp"), ("norm + head", "parameters", "dp_shard")):
        assert rows[key].sent_forward == 2 * halved[key].sent_forward
    gradients = ("norm + head", "gradients", "dp_shard")
    assert rows[gradients].sent_backward == halved[gradients].sent_backward

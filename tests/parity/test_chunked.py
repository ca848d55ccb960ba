"""Head and loss over parts of the tokens give the step that they give over all tokens, in less memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from meshwright.train.assemble import assemble, connect
from meshwright.train.config import ComputeConfig
from meshwright.train.step import train_step
from tests.marks import slow
from tests.parity.harness import (
    alone_on_cpu,
    assert_same,
    global_batch,
    laid_out,
    largest_error,
    on_threads,
    one_device,
    rows,
    small,
)
from tests.parity.processes import on_processes
from tests.parity.test_compute import assert_compiled_once, computed
from tests.processes import ranks

BACKENDS = ("spmd_types", "full_dtensor", "partial_dtensor")
ON_THREADS = [
    {},
    {"tp": 2},
    {"tp": 8},
    {"cp": 2, "tp": 2},
    {"dp_shard": 2, "tp": 2, "sequence_parallel": False},
]
OF_TWO = [
    {"dp_shard": 2},
    {"tp": 2},
    {"cp": 2},
    {"pp": 2},
    {"pp": 2, "schedule": "interleaved_1f1b"},
    {"pp": 2, "schedule": "zbv"},
]
TIED_OF_TWO = [{"dp_shard": 2}, {"pp": 2}, {"pp": 2, "schedule": "zbv"}]
TIED_OF_FOUR = [{"dp_shard": 2, "tp": 2}, {"tp": 2, "pp": 2, "schedule": "interleaved_zero_bubble"}]


def in_chunks(config, chunks, **compute):
    return replace(config, compute=ComputeConfig(loss_chunks=chunks, **compute))


def deep(**numbers):
    """4 blocks and 8 rows."""
    config = small(layers=4, **numbers)
    return replace(config, training=replace(config.training, batch=8))


@pytest.fixture(scope="module")
def batches():
    return [global_batch(deep(), seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def alone(batches):
    return one_device(deep(), batches)


@pytest.mark.parametrize("chunks", [2, 8])
@pytest.mark.parametrize("layout", ON_THREADS, ids=str)
def test_a_layout_equals_one_device_without_chunks(layout, chunks, alone, batches):
    assert_same(on_threads(in_chunks(laid_out(deep(), **layout), chunks), batches), alone)


@pytest.mark.parametrize(
    ("world", "layouts", "tied"), [slow(2, OF_TWO, False), (2, TIED_OF_TWO, True), slow(4, TIED_OF_FOUR, True)]
)
def test_backends_agree_to_the_last_bit(world, layouts, tied, batches):
    config = deep(tied=tied)
    alone = one_device(config, batches)
    configs = [laid_out(config, backend=backend, **layout) for layout in layouts for backend in BACKENDS]
    outcomes = iter(on_processes([in_chunks(each, 4) for each in configs], batches, world))
    for layout in layouts:
        erased = next(outcomes)
        assert_same(erased, alone)
        for backend in BACKENDS[1:]:
            found = next(outcomes)
            assert (found.loss, found.grad_norm) == (erased.loss, erased.grad_norm), (layout, backend)
            assert largest_error(found.grads, erased.grads)[0] == 0.0, (layout, backend)


@pytest.mark.parametrize("reshard", ["always", "never"])
def test_wherever_the_weights_are_freed(reshard, alone, batches):
    layouts = [{"dp_shard": 2}, {"dp_shard": 2, "backend": "full_dtensor"}]
    configs = [in_chunks(laid_out(deep(), **layout), 4, reshard=reshard) for layout in layouts]
    for outcome in on_processes(configs, batches, 2):
        assert_same(outcome, alone)


class Collectives(TorchDispatchMode):
    """How often each has been called."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace.strip("_").startswith("c10d"):
            self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def collectives(rank, config, batches):
    """How often this rank calls each collective in a step."""
    backend, everyone = connect(config, rank, "cpu")
    run = assemble(config, backend, everyone, torch.device("cpu"))
    dp = backend.view["dp"]
    with Collectives() as counted:
        train_step(run, [rows(batch, dp.index, dp.size) for batch in batches], step=1, rate=1e-3, max_norm=1.0)
    return counted.calls


@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_gathered_and_their_gradients_summed_as_often_as_without(tied, batches):
    config = laid_out(deep(tied=tied), dp_shard=2)
    without, *parts = [ranks(2).run(collectives, in_chunks(config, chunks), batches) for chunks in (1, 4)]
    assert any("allgather" in op for op in without[0])
    assert parts == [without]


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"cp": 2}, {"tp": 2}, {"dp_shard": 2}, {"pp": 2}], ids=str)
def test_blocks_and_parts_compile_once_for_all_steps(layout, batches):
    assert_compiled_once(computed(layout, compile=True, loss_chunks=2), batches)


class Largest(TorchDispatchMode):
    """The most elements that a tensor has had which an op made."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return made


@pytest.mark.parametrize("chunks", [1, 2, 4, 16])
def test_no_tensor_has_the_logits_of_more_than_a_part(chunks):
    config = small(vocab=2048, dim=16)
    run, batch = alone_on_cpu(in_chunks(config, chunks)), global_batch(config)
    with Largest() as largest:
        train_step(run, [batch], step=1, rate=1e-3, max_norm=1.0)
    assert largest.elements == max(batch.tokens.numel() // chunks, config.model.dim) * config.model.vocab

"""Frozen weights stay frozen and tied weights stay tied through parallelize and materialise, and through a step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.backends.parallelize import materialise, parallelize
from meshwright.comm.grid import DENSE, WORLD
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.train.assemble import local_backend, on_meta, run_dims
from meshwright.train.gradients import Gradients
from meshwright.train.optimizer import adamw
from tests.cases.backends import alone_frozen, everywhere, on_processes_frozen
from tests.cases.drawn import llamas
from tests.marks import slow
from tests.parity.harness import alone_on_cpu, assert_same, global_batch, small

CONFIGS = llamas(shards=(1, 2))


def names(config):
    return [name for name, _ in on_meta(config)[0].named_parameters()]


def frozen_among(data, config):
    """Some of the parameters, not all: a step needs one to move."""
    every = names(config)
    return frozenset(data.draw(st.lists(st.sampled_from(every), unique=True, max_size=len(every) - 1), label="frozen"))


def on_ranks(config, frozen, work):
    dims = run_dims(config)

    def body(rank: int):
        view = current_mesh()
        backend = local_backend(dims, rank, view)
        model, _ = on_meta(config)
        for name in frozen:
            model.get_parameter(name).requires_grad_(False)
        states = parallelize(model, backend)
        materialise(model, backend, states, torch.device("cpu"), config.training.seed)
        return work(model, backend, states, view)

    return run_ranks(dims, body, {**DENSE, **WORLD})


@settings(max_examples=15)
@given(config=CONFIGS, data=st.data())
def test_they_stay_so(config, data):
    """And start with the values of one device, whether they are frozen, tied, or neither."""
    frozen = frozen_among(data, config)
    true = dict(alone_on_cpu(config).model.named_parameters())

    def check(model, backend, states, view) -> None:
        assert (model.head.weight is model.embedding.weight) is config.model.tied
        held = dict(model.named_parameters())
        assert list(held) == names(config)
        assert {name for name, param in held.items() if not param.requires_grad} == frozen
        assert {name for name, info in states.items() if not info.trained} == frozen | (states.keys() - held.keys())
        for name, param in held.items():
            info = states[name]
            spans = [info.layout.span(dim, n, view.degree, view.index) for dim, n in enumerate(info.shape)]
            assert torch.equal(param, true[name][tuple(slice(span.start, span.stop) for span in spans)]), name

    on_ranks(config, frozen, check)


@settings(max_examples=15)
@given(config=CONFIGS, data=st.data(), seed=st.integers(0, 99))
def test_a_step_moves_the_others_alone(config, data, seed):
    frozen = frozen_among(data, config)
    shape = 2, config.training.length

    def check(model, backend, states, view) -> None:
        before = {name: param.detach().clone() for name, param in model.named_parameters()}
        tokens = torch.randint(config.model.vocab, shape, generator=torch.Generator().manual_seed(seed))
        optimizer = adamw(model.parameters(), config.optimizer)
        with backend.scope():
            model(tokens).square().sum().backward()
        Gradients(model, backend, states, view["world"]).finish()
        optimizer.step()
        still = {name for name, param in model.named_parameters() if torch.equal(param, before[name])}
        assert still == frozen
        assert all(model.get_parameter(name).grad is None for name in frozen)
        assert (model.head.weight is model.embedding.weight) is config.model.tied

    on_ranks(config, frozen, check)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("pattern", [r"blocks\.1\.|norm", slow(r".*attention"), r"embedding|head"], ids=str)
def test_on_every_backend_and_through_a_pipeline(pattern, tied):
    """A whole block, a part of every block, both ends, which may be one."""
    config, batches = small(tied=tied), [global_batch(small(), 3)]
    alone = alone_frozen(config, batches, pattern)
    layouts = [{"pp": 2, "dp_shard": 2}, {"pp": 2, "tp": 2}]
    for outcome in on_processes_frozen(everywhere(config, layouts), batches, 4, pattern):
        assert_same(outcome, alone)
        still = {name for name, weight in outcome.weights.items() if torch.equal(weight, outcome.updated[name])}
        assert still == outcome.weights.keys() - outcome.grads.keys() != set()

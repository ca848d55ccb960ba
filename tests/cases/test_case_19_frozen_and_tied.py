"""Frozen weights stay frozen and tied weights stay tied through parallelize and materialise, and through a step."""

from __future__ import annotations

import pytest
import torch

from meshwright.backends.parallelize import materialise, parallelize
from meshwright.comm.grid import DENSE, WORLD
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.train.assemble import local_backend, on_meta, run_dims
from meshwright.train.gradients import Gradients
from meshwright.train.optimizer import adamw
from tests.parity.harness import laid_out, small

LAYOUTS = [{}, {"tp": 2}, {"tp": 4, "sequence_parallel": False}, {"dp_shard": 2, "tp": 2}]
FROZEN = ("embedding.weight", "blocks.0.attention.wq.weight", "norm.weight")


def on_ranks(config, work):
    dims = run_dims(config)

    def body(rank: int):
        view = current_mesh()
        backend = local_backend(dims, rank, view)
        model, _ = on_meta(config)
        for name in FROZEN:
            model.get_parameter(name).requires_grad_(False)
        states = parallelize(model, backend)
        materialise(model, backend, states, torch.device("cpu"), config.training.seed)
        return work(model, backend, states, view)

    return run_ranks(dims, body, {**DENSE, **WORLD})


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_they_stay_so(layout, tied):
    config = laid_out(small(tied=tied), **layout)

    def check(model, backend, states, view) -> None:
        assert (model.head.weight is model.embedding.weight) is tied
        frozen = {name for name, param in model.named_parameters() if not param.requires_grad}
        assert frozen == set(FROZEN)
        assert {name for name, info in states.items() if not info.trained} >= frozen

    on_ranks(config, check)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_step_moves_the_others_alone(layout):
    config = laid_out(small(), **layout)

    def check(model, backend, states, view) -> None:
        before = {name: param.detach().clone() for name, param in model.named_parameters()}
        tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(0))
        optimizer = adamw(model, config.optimizer)
        with backend.scope():
            model(tokens).square().sum().backward()
        Gradients(model, backend, states, view["world"]).finish()
        optimizer.step()
        still = {name for name, param in model.named_parameters() if torch.equal(param, before[name])}
        assert still == set(FROZEN)
        assert all(model.get_parameter(name).grad is None for name in FROZEN)

    on_ranks(config, check)

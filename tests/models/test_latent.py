"""Latent attention under every layout equals one device, in values and in every gradient, whatever the backend."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from meshwright.audit.check import check
from meshwright.core.sharding import ShardingConfig
from meshwright.models.layouts import activation, state
from meshwright.models.rope import Rope, Yarn, in_halves, rotate
from meshwright.types.kinds import I, R, S
from tests.models.specs import small_latent
from tests.parity.harness import assert_same, global_batch, laid_out, on_threads, one_device
from tests.parity.processes import on_processes

LAYOUTS = [
    {"tp": 2},
    {"tp": 2, "sequence_parallel": False},
    {"tp": 8},
    {"tp": 8, "sequence_parallel": False},
    {"cp": 2, "tp": 2},
    {"dp_shard": 2, "tp": 2, "sequence_parallel": False},
]
NUMBERS = [{}, {"q_latent": 0}, {"scaling": Yarn(length=8), "tied": True}]


@pytest.fixture(scope="module")
def batches():
    return [global_batch(small_latent(), seed) for seed in (0, 1)]


@pytest.mark.parametrize("numbers", NUMBERS, ids=["latent queries", "plain queries", "stretched, tied"])
def test_every_layout_equals_one_device(numbers, batches):
    config = small_latent(**numbers)
    alone = one_device(config, batches)
    assert all(alone.grads[f"blocks.1.attention.{name}.weight"].abs().max() > 0 for name in ("wkv_a", "kv_norm"))
    for layout in LAYOUTS:
        assert_same(on_threads(laid_out(config, **layout), batches), alone)


@pytest.mark.parametrize("layout", [{"tp": 2}, {"tp": 2, "sequence_parallel": False}, {"cp": 2}], ids=str)
def test_the_backends_agree_to_the_last_bit(layout, batches):
    config = small_latent()
    backends = ("spmd_types", "full_dtensor", "partial_dtensor")
    configs = [laid_out(config, backend=backend, **layout) for backend in backends]
    erased, *others = on_processes(configs, batches, 2)
    assert_same(erased, one_device(config, batches))
    for other in others:
        assert (other.loss, other.grad_norm) == (erased.loss, erased.grad_norm)
        assert all(torch.equal(other.updated[name], erased.updated[name]) for name in erased.updated)


@pytest.mark.parametrize("layout", [*LAYOUTS, {"dp_shard": 2, "tp": 2, "pp": 2}], ids=str)
@pytest.mark.parametrize("numbers", NUMBERS[:2], ids=["latent queries", "plain queries"])
def test_the_declared_layouts_are_right(numbers, layout):
    report = check(laid_out(small_latent(**numbers), **layout))
    assert report.problems == []
    assert report.right
    assert report.typed
    assert not any("attention" in trusted.where for trusted in report.trusted)


def with_fault(edit, **parallel):
    """The problems where a part of the first block's attention declares other fields."""

    def layouts(spec, modules, plan):
        spec.declare(modules, plan)
        edit(modules.blocks[0].attention, plan)

    report = check(replace(laid_out(small_latent(), **parallel), layouts=layouts))
    assert not report.right
    return report.problems


def as_it_is(attention, plan):
    """The shared rotary key enters in the stream's layout."""
    declared = attention.shared_key.sharding_config
    gradients = {**declared.local_map.in_grad_shardings, "shared": plan.residual.dual}
    region = replace(declared.local_map, in_grad_shardings=gradients)
    attention.shared_key.sharding_config = replace(declared, in_dst_shardings=None, local_map=region)


def without_gradient(attention, plan):
    """What the region hands back for the shared key is left out."""
    declared = attention.shared_key.sharding_config
    gradients = {**declared.local_map.in_grad_shardings, "shared": None}
    attention.shared_key.sharding_config = replace(
        declared, local_map=replace(declared.local_map, in_grad_shardings=gradients)
    )


def test_the_shared_key_used_as_it_is_is_refused():
    """Case 3: each rank's heads have a part of its gradient, and I means that nobody sums them."""
    (problem,) = with_fault(as_it_is, tp=2, sequence_parallel=False)
    assert problem.where.startswith("blocks.0.attention.shared_key")
    assert "'tp'" in problem.what
    assert "I" in problem.what
    assert problem.fix.startswith("I -> R")


def test_the_shared_key_of_a_part_of_the_sequence_is_refused():
    (problem,) = with_fault(as_it_is, tp=2)
    assert problem.where.startswith("blocks.0.attention.shared_key")


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_a_shared_key_without_gradient_is_refused(sequence_parallel):
    (problem,) = with_fault(without_gradient, tp=2, sequence_parallel=sequence_parallel)
    assert problem.where == "blocks.0.attention.shared_key.sharding_config.local_map.in_grad_shardings['shared']"
    assert '"tp": P' in problem.fix


@pytest.mark.parametrize(("sequence_parallel", "wrong", "right"), [(True, I, "R"), (False, R, "I")])
@pytest.mark.parametrize("part", ["wq_a", "q_norm", "wkv_a", "kv_norm"])
def test_a_small_weight_of_the_other_type_is_refused(part, sequence_parallel, wrong, right):
    def edit(attention, plan):
        own = getattr(attention, part)
        own.sharding_config = replace(own.sharding_config, state_shardings={"weight": state(wrong)})

    (problem,) = with_fault(edit, tp=2, sequence_parallel=sequence_parallel)
    assert problem.where == f"blocks.0.attention.{part}.sharding_config.state_shardings['weight']"
    assert f'"tp": {right}' in problem.fix


def test_heads_from_a_latent_that_nobody_gathered_are_refused():
    def edit(attention, plan):
        attention.wkv_b.sharding_config = ShardingConfig(
            state_shardings={"weight": state(S(0))},
            in_src_shardings={"x": plan.residual},
            out_src_shardings=activation(S(2)),
        )

    for sequence_parallel in (True, False):
        problem, *_ = with_fault(edit, tp=2, sequence_parallel=sequence_parallel)
        assert problem.where.startswith("blocks.0.attention.wkv_b")


@pytest.mark.parametrize(("tp", "right"), [(2, True), (4, True), (8, True), (3, False), (16, False)])
def test_heads_that_do_not_split_are_refused_with_the_legal_degrees(tp, right):
    report = check(laid_out(small_latent(), tp=tp, sequence_parallel=False))
    assert report.right is right
    if not right:
        told = [problem for problem in report.problems if "heads" in problem.what]
        assert [problem.where for problem in told] == ["blocks.0.attention", "blocks.1.attention"]
        assert {problem.fix for problem in told} == {"--parallel.tp 1, 2, 4 or 8"}


def test_a_latent_is_all_that_is_gathered():
    """With sequence parallelism no rank has the stream of the whole sequence, but for the feed-forward and the head."""
    report = check(laid_out(small_latent(), tp=2))
    into = {row.module for row in report.traffic if "attention" in row.module}
    assert not any(module.endswith("attention") for module in into)
    assert any("wq_b" in module for module in into)
    assert any("shared_key" in module for module in into)


def test_neighbours_that_turn_together_are_halves_that_do():
    """Rows reordered as they are loaded: the products of rotated queries and keys stay."""
    generator = torch.Generator().manual_seed(0)
    rope = Rope.Config(head_dim=6, theta=100.0).build()
    rope.frequencies = rope._frequencies(torch.arange(3))
    cosine, sine = rope(torch.arange(5).unsqueeze(0))
    x = torch.randn(1, 5, 4, generator=generator)
    wq, wk = torch.randn(2, 6, 4, generator=generator)

    def turned(weight):
        """By hand: each pair of neighbours is a complex number that turns by its angle."""
        pairs = torch.view_as_complex((x @ weight.T).unflatten(-1, (3, 2)))
        angle = torch.arange(5.0)[:, None] * rope.frequencies
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

    def by_halves(weight):
        return rotate((x @ in_halves(weight).T).unsqueeze(2), cosine, sine).squeeze(2)

    products = [f(wq) @ f(wk).transpose(1, 2) for f in (turned, by_halves)]
    assert torch.allclose(*products, atol=1e-5)

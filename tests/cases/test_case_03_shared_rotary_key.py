"""A replicated projection gives [c, r]: c enters a column-parallel layer, r is expanded onto the heads of each rank.

tp 2, gradients c (1, 2) and r (3, 4) by rank: [3, 7] on both. r used without I -> R: refused. A gradient that is
reduced already is not reduced again.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm.threads import run_ranks
from meshwright.models.layouts import activation
from meshwright.parity.step import thread_parts
from meshwright.train.config import TrainingConfig
from tests.audit.recipes import declares, region
from tests.audit.recipes import judged as checked
from tests.cases.agreement import Held, agrees, refused_and_mended
from tests.cases.mixtures import planted
from tests.check.judged import judged, on, refusal, says
from tests.denotation import sample
from tests.models.specs import small_latent
from tests.parity.harness import assert_same, global_batch, laid_out, on_threads, one_device

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S
TWO = on("tp", 2)


def latent(rank, *, convert_c=True, convert_r=True, axis="tp"):
    """The gradient of the projection's output, and what the ranks contribute: 1, 2 to c, and 3, 4 to r."""
    projected = spmd.assert_type(torch.zeros(2, requires_grad=True), {axis: I})
    c, r = projected[0], projected[1]
    column = spmd.assert_type(torch.tensor([[1.0], [2.0]])[rank], {axis: S(0)})
    head = spmd.assert_type(torch.tensor([[3.0], [4.0]])[rank], {axis: S(0)})
    if convert_c:
        c = spmd.convert(c, axis, src=I, dst=R)
    if convert_r:
        r = spmd.convert(r, axis, src=I, dst=R)
    loss = (c * column + r.expand(1) * head).sum()
    loss.backward()
    return projected.grad.tolist()


def test_both_parts_of_the_gradient_are_summed_over_the_ranks():
    assert judged(latent, TWO) == [[3.0, 7.0]] * 2


@pytest.mark.parametrize("part", ["convert_c", "convert_r"])
def test_one_used_as_it_is_is_refused(part):
    problem = refusal(lambda rank: latent(rank, **{part: False}), TWO)
    says(problem, "tp", "I, S(0)", "I -> R: convert(input, 'tp', src=I, dst=R)")


def test_unchecked_it_is_each_ranks_own_part():
    assert run_ranks(TWO, lambda rank: latent(rank, convert_r=False)) == [[3.0, 3.0], [3.0, 4.0]]


def test_what_is_reduced_is_not_reduced_again():
    def program(rank):
        projected = spmd.assert_type(torch.zeros(2, requires_grad=True), {"tp": I})
        head = spmd.assert_type(torch.full((1,), 3.0 + rank), {"tp": S(0)})
        (spmd.convert(projected, "tp", src=I, dst=R)[1:] * head).sum().backward()
        spmd.all_reduce(projected.grad, "tp", src=P, dst=R)

    says(refusal(program, TWO), "tp", "I, P", "leave the call out")


USES = {
    "expand_as": lambda input, other: input.unsqueeze(1).expand_as(other) * other,
    "broadcast": lambda input, other: input.unsqueeze(1) * other,
    "repeat": lambda input, other: torch.mul(input[:, None], other),
    "einsum": lambda input, other: torch.einsum("tr,thr->thr", input, other),
    "added": lambda input, other: other + input[:, None],
}


@settings(max_examples=12)
@given(
    axis=st.sampled_from(["tp", "cp", "dp"]),
    degree=st.sampled_from([2, 3]),
    tokens=st.integers(1, 3),
    heads=st.integers(1, 2),
    width=st.integers(1, 3),
    use=st.sampled_from(sorted(USES)),
    seed=st.integers(0, 99),
)
def test_whatever_the_axis_and_the_heads(axis, degree, tokens, heads, width, use, seed):
    dims = on(axis, degree)
    shared = sample((tokens, width), seed)
    local_heads = Held(sample((tokens, heads * degree, width), seed + 1), {axis: S(1)})

    def program(shared, other):
        return USES[use](shared, other)

    kept = Held(shared, {axis: I})
    says(
        refusal(lambda rank: program(kept.on_rank(dims, rank), local_heads.on_rank(dims, rank)), dims), axis, "I, S(1)"
    )
    convert = f"convert(shared, {axis!r}, src=I, dst=R)"
    assert agrees(program, dims, [convert], shared=kept, other=local_heads) == {axis: S(1)}


def test_the_printed_fix_makes_it_right():
    problem = refused_and_mended(
        lambda input, other: input * other,
        TWO,
        input=Held(sample((3,), 1), {"tp": I}),
        other=Held(sample((4, 3), 2), {"tp": S(0)}),
    )
    assert "summed over tp" in problem.fix


KEY = "blocks.1.attention.shared_key"


@st.composite
def latents(draw, splits=(True, False)):
    """Latent attention of drawn widths, its heads over tp."""
    tp = draw(st.sampled_from([2, 3, 4]))
    config = small_latent(
        heads=tp * draw(st.integers(1, 2)),
        hidden=tp * 4,
        vocab=tp * 8,
        q_latent=draw(st.sampled_from([0, 6])),
        kv_latent=draw(st.integers(3, 8)),
        nope_dim=draw(st.integers(1, 4)),
        rope_dim=2 * draw(st.integers(1, 3)),
        value_dim=draw(st.integers(2, 5)),
    )
    training = TrainingConfig(steps=10, length=tp * 4, batch=2, seed=draw(st.integers(0, 9)))
    return laid_out(replace(config, training=training), tp=tp, sequence_parallel=draw(st.sampled_from(splits)))


@settings(max_examples=6)
@given(config=latents(), seed=st.integers(0, 99))
def test_latent_attention_has_the_gradients_of_one_device(config, seed):
    batches = [global_batch(config, seed)]
    assert_same(on_threads(config, batches), one_device(config, batches))


@settings(max_examples=4)
@given(config=latents(splits=[False]), seed=st.integers(0, 99))
def test_its_shared_key_taken_as_it_lies_is_refused_and_else_wrong(config, seed):
    fault = declares(KEY, in_dst_shardings=None), region(KEY, shared=activation(I))
    faulty = planted(config, *fault)
    problem = checked(faulty).problems[0]
    assert problem.where.startswith(KEY)
    says(problem, "tp", "I", "'tp', src=I, dst=R), whose gradient is summed over tp")
    converted = declares(KEY, in_dst_shardings={"shared": activation(R)}), region(KEY, shared=activation(P))
    assert checked(planted(config, *fault, *converted)).right
    batches = [global_batch(config, seed)]
    own = thread_parts(faulty, batches)[0].grads["blocks.1.attention.wkv_a.weight"]
    true = one_device(config, batches).grads["blocks.1.attention.wkv_a.weight"]
    assert (own - true).norm() > 1e-2 * true.norm()

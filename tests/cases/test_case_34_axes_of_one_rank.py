"""Every program is the same with every axis of one rank: what is accepted stays so, with the same types, and is right.

What is refused on two ranks is refused on one: a program is wrong wherever it runs.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from meshwright.errors import SpmdTypeError
from tests.cases.agreement import Held, agrees
from tests.denotation import sample

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S
DIMS = {
    "two": ParallelismDims(dp_shard=2, cp=2, tp=2),
    "one": ParallelismDims(),
    "one of tp": ParallelismDims(dp_shard=2, cp=2),
    "one of dp": ParallelismDims(cp=2, tp=2),
}


def x(layout, *shape, wants=True, seed=1):
    return Held(sample(shape, seed), {"dp": R, "cp": R, "tp": R, **layout}, wants)


def step(name, src, dst, axis="tp"):
    return lambda input: getattr(spmd, name)(input, axis, src=src, dst=dst) if spmd.is_type_checking() else input * 1.0


TOKENS = {"dp": S(0), "cp": S(1)}

ACCEPTED = {
    "pointwise": (lambda a, b: a * b + 2 * a, (x(TOKENS, 4, 4, 4), x(TOKENS, 4, 4, 4))),
    "column parallel": (lambda a, w: a @ w.t(), (x(TOKENS, 4, 4, 6), x({"tp": S(0)}, 4, 6))),
    "row parallel": (lambda a, w: F.linear(a, w), (x({**TOKENS, "tp": S(2)}, 4, 4, 6), x({"tp": S(1)}, 3, 6))),
    "flattened": (lambda a: (a.flatten(0, 1) * 2).unflatten(0, a.shape[:2]), (x(TOKENS, 4, 4, 3),)),
    "heads": (lambda a: a.unflatten(-1, (-1, 2)).transpose(1, 2), (x({"dp": S(0), "tp": S(2)}, 4, 3, 8),)),
    "norm": (lambda a, w: F.rms_norm(a, (4,), w), (x(TOKENS, 4, 4, 4), x({}, 4))),
    "softmax": (lambda a: a.softmax(-1), (x(TOKENS, 4, 4, 4),)),
    "sum": (lambda a: a.sum((0, 1)), (x(TOKENS, 4, 4, 4),)),
    "attention": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        (x({"dp": S(0), "tp": S(1)}, 4, 4, 3, 2), x({"dp": S(0), "tp": S(1)}, 4, 4, 3, 2)),
    ),
    "of a sum": (lambda a, w: (a * 0.5) @ w + a[..., :2], (x({"tp": P}, 4, 3), x({}, 3, 2))),
    "gather": (step("all_gather", S(0), R), (x({"tp": S(0)}, 4, 3),)),
    "gather, I": (step("all_gather", S(1), I), (x({"tp": S(1)}, 4, 4),)),
    "reduce": (step("all_reduce", P, R), (x({"tp": P}, 4, 3),)),
    "reduce, I": (step("all_reduce", P, I), (x({"tp": P}, 4, 3),)),
    "scatter": (step("reduce_scatter", P, S(0)), (x({"tp": P}, 4, 3),)),
    "exchange": (step("all_to_all", S(0), S(1)), (x({"tp": S(0)}, 4, 4),)),
    "slice": (step("convert", R, S(1)), (x({}, 4, 4),)),
    "slice of I": (step("convert", I, S(1)), (x({"tp": I}, 4, 4),)),
    "as a part": (step("convert", R, P), (x({}, 4, 4),)),
    "I to R": (step("convert", I, R), (x({"tp": I}, 4, 4),)),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_accepted_program_has_the_same_types_and_is_right(name):
    program, held = ACCEPTED[name]
    operands = {f"x{place}": each for place, each in enumerate(held)}
    run = lambda **given_: program(*given_.values())  # noqa: E731
    layouts = {way: agrees(run, dims, **operands) for way, dims in DIMS.items()}
    assert len(set(layouts.values())) == 1, layouts


def given_(kind, *shape):
    return spmd.assert_type(torch.ones(shape, requires_grad=True), {"dp": R, "cp": R, "tp": kind})


REFUSED = {
    "I meets S": lambda: given_(I, 3) * given_(S(0), 2, 3),
    "P + R": lambda: given_(P, 3) + given_(R, 3),
    "P + 10": lambda: given_(P, 3) + 10,
    "P * P": lambda: given_(P, 3) * given_(P, 3),
    "exp of P": lambda: given_(P, 3).exp(),
    "read of P": lambda: given_(P).item(),
    "read of V": lambda: given_(V).item(),
    "reduce of R": lambda: spmd.all_reduce(given_(R, 3), "tp", src=P, dst=R),
    "reduce of S": lambda: spmd.all_reduce(given_(S(0), 3), "tp", src=P, dst=R),
    "softmax over S": lambda: given_(S(0), 3).softmax(0),
    "mean over S": lambda: given_(S(0), 3).mean(),
    "roll of S": lambda: given_(S(0), 3).roll(1),
    "write of V": lambda: given_(R, 3).detach().copy_(given_(V, 3)),
    "backward of R": lambda: given_(R).backward(),
    "backward of V": lambda: given_(V).backward(),
    "local length": lambda: (lambda s: s.sum() / s.shape[0])(given_(S(0), 3)),
    "squeeze of S": lambda: given_(S(0), 1, 3).squeeze(0),
    "another source": lambda: spmd.all_gather(given_(R, 3), "tp", src=S(0), dst=R),
    "a step of an unreduced gradient": lambda: unreduced(),
}


def unreduced():
    weight = given_(R, 3)
    spmd.convert((weight * 2).sum(), "tp", src=R, dst=P)
    loss = (weight[None] * given_(S(0), 2, 3)).sum()
    for axis in ("dp", "cp"):
        loss = spmd.convert(loss, axis, src=R, dst=P)
    loss.backward()
    torch.optim.SGD([weight], lr=1.0).step()


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_program_is_refused(name):
    found = set()
    for dims in ({"dp": 2, "cp": 2, "tp": 2}, {"dp": 1, "cp": 1, "tp": 1}):
        with spmd.set_current_mesh(spmd.mesh(**dims)), spmd.typecheck(), pytest.raises(SpmdTypeError) as error:
            REFUSED[name]()
        found.add(error.value.problems[0].code)
    assert len(found) == 1


@settings(max_examples=10)
@given(
    degrees=st.tuples(*[st.sampled_from([1, 2])] * 3),
    rows=st.integers(2, 3),
    width=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_a_layer_on_any_mesh(degrees, rows, width, seed):
    dp, cp, tp = degrees
    dims = ParallelismDims(dp_shard=dp, cp=cp, tp=tp)
    tokens = x({"dp": S(0), "cp": S(1)}, rows * dp, 2 * cp, width, seed=seed)
    up, down = x({"tp": S(0)}, 2 * tp, width, seed=seed + 1), x({"tp": S(1)}, width, 2 * tp, seed=seed + 2)

    def program(tokens, up, down):
        out = F.silu(tokens.flatten(0, 1) @ up.t()) @ down.t()
        return out.unflatten(0, tokens.shape[:2])

    assert agrees(program, dims, tokens=tokens, up=up, down=down) == {"dp": S(0), "cp": S(1), "tp": P}

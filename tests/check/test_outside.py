"""What torch does behind a mode's back: parameters, transforms of functions, checkpointing, copies, compiling."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.errors import SpmdTypeError
from tests.check.programs_alone import MESH, accepted, given, refused

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


def saved(x):
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "save and load": saved,
    "Parameter": torch.nn.Parameter,
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to(torch.float32),
    "double": lambda x: x.double(),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "clone": lambda x: x.clone(),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("kind", [R, I, V, S(0)])
def test_a_copy_has_the_type_of_what_it_copies(name, kind):
    assert accepted(lambda: COPIES[name](given(kind, 4, wants=name not in ("deepcopy", "pickle")))) == {"tp": kind}


def test_entries_that_are_mapped_over_are_a_list_and_shards_again():
    both = torch.vmap(lambda a, b: (a.exp() * b).sum(), in_dims=(0, None))
    assert accepted(lambda: both(given(S(0), 4, 3), given(R, 3))) == {"tp": S(0)}
    out = torch.vmap(lambda a: a * 2, in_dims=1, out_dims=0)
    assert accepted(lambda: out(given(S(1), 4, 3))) == {"tp": S(0)}
    assert accepted(lambda: out(given(S(0), 4, 3))) == {"tp": S(1)}
    refused(lambda: torch.vmap(torch.exp)(given(P, 4, 3)), Code.NOT_LINEAR)
    meets = torch.vmap(torch.mul, in_dims=(0, None))
    refused(lambda: meets(given(S(0), 4, 3), given(I, 3)), Code.INVARIANT_MEETS)


def test_the_loss_of_a_transformed_function_is_judged_like_any_other():
    def loss(a):
        return (a * a).sum()

    assert accepted(lambda: torch.func.grad(loss)(given(S(0), 4))) == {"tp": S(0)}
    assert accepted(lambda: torch.func.grad(loss)(given(I, 4))) == {"tp": I}
    refused(lambda: torch.func.grad(loss)(given(R, 4)), Code.SEED)
    refused(lambda: torch.func.grad(lambda a: a.exp().sum())(given(P, 4)), Code.NOT_LINEAR)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_block_is_judged(reentrant):
    def run(block, kind):
        return lambda: checkpoint(block, given(kind, 4), use_reentrant=reentrant)

    assert accepted(run(lambda a: spmd.all_reduce(a, "tp", src=P, dst=R).exp(), P)) == {"tp": R}
    refused(run(torch.exp, P), Code.NOT_LINEAR)
    refused(lambda: checkpoint(torch.mul, given(I, 4), given(S(0), 2), use_reentrant=reentrant), Code.INVARIANT_MEETS)


def test_compiling_asks_to_check_first():
    compiled = torch.compile(lambda a: a.exp() + 1, backend="eager")
    compiled(torch.ones(4))
    with spmd.set_current_mesh(MESH), spmd.typecheck():
        x = given(R, 4)
        with pytest.raises(SpmdTypeError, match="MW129"):
            compiled(x)
        with pytest.raises(SpmdTypeError, match="MW129"):
            torch.compile(lambda a: a)
    assert compiled(torch.ones(4)).shape == (4,)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
        lambda p: torch.optim.AdamW(p, foreach=False),
        lambda p: torch.optim.AdamW(p, foreach=True),
        lambda p: torch.optim.Adam(p, fused=True),
    ],
)
def test_an_optimizer_steps_on_what_is_reduced(make):
    def program(reduced):
        weight = given(R, 4)
        optimizer = make([weight])
        spmd.convert((weight * weight).sum(), "tp", src=R, dst=P).backward()
        if reduced:
            weight.grad = spmd.all_reduce(weight.grad, "tp", src=P, dst=R)
        optimizer.step()
        return weight * 2

    assert accepted(lambda: program(True)) == {"tp": R}
    with spmd.set_current_mesh(MESH), spmd.typecheck(), pytest.raises(SpmdTypeError, match="is P on axis 'tp'"):
        program(False)


def test_hooks_run_and_gradients_keep_their_types():
    seen = []

    def program():
        x = given(S(0), 4)
        x.register_hook(lambda g: seen.append(g.shape))
        (x * 2).sum().backward()
        return x.grad

    assert accepted(program) == {"tp": S(0)}
    assert len(seen) == 1

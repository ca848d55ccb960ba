"""Gradients have the dual type of what they are gradients of, however they come about."""

from __future__ import annotations

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.check import layout_of
from tests.check.judged import judged, on, refusal, says

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S
TWO = on("tp", 2)


def leaf(kind, *shape):
    return spmd.assert_type(torch.ones(*shape, requires_grad=True), {"tp": kind})


def backward(loss, gradient=None):
    loss.backward(gradient=gradient)


def of_torch(loss, gradient=None):
    torch.autograd.backward([loss], None if gradient is None else [gradient])


def grad_of(x):
    def grad(loss, gradient=None):
        torch.autograd.grad(loss, x, gradient)

    return grad


ENTRIES = ["backward", "autograd.backward", "autograd.grad"]


def enter(entry, x):
    return {"backward": backward, "autograd.backward": of_torch, "autograd.grad": grad_of(x)}[entry]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("gradient", [None, "ones", R])
def test_a_loss_that_is_replicated_is_no_seed(entry, gradient):
    def program(rank):
        x = leaf(R, 2)
        loss = (x * 2).sum()
        seed = {None: None, "ones": torch.ones(())}.get(gradient, torch.ones(()))
        if gradient is R:
            seed = spmd.assert_type(seed, {"tp": R})
        enter(entry, x)(loss, seed)

    says(refusal(program, TWO), "tp", "R", "R -> P: convert(loss, 'tp', src=R, dst=P)")


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("kind", [I, P])
def test_a_loss_that_is_invariant_or_partial_is(entry, gradient, kind):
    def program(rank):
        x = leaf(kind, 2)
        loss = (x * 2).sum()
        enter(entry, x)(loss, torch.ones(()) if gradient else None)

    judged(program, TWO)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("kind", [V, S(0)])
def test_a_loss_of_each_rank_says_how_it_is_meant(entry, kind):
    def program(rank):
        x = leaf(kind, 1)
        loss = x * 2
        enter(entry, x)(loss.sum() if kind is V else loss)

    says(refusal(program, TWO), "tp", repr(kind), "reinterpret(loss, 'tp', src=V, dst=P)")


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("kind", [R, I, V, P, S(0)])
def test_a_seed_of_the_dual_type_is_taken(entry, kind):
    def program(rank):
        x = leaf(kind, 2)
        enter(entry, x)(x * 2, spmd.assert_type(torch.ones(2), {"tp": kind.dual}))

    judged(program, TWO)


@pytest.mark.parametrize("kind", [R, I, V, P, S(0)])
def test_a_gradient_has_the_dual_type(kind):
    def program(rank):
        x = leaf(kind, 2)
        y = x * 2
        y.retain_grad()
        seed = spmd.assert_type(torch.ones(2), {"tp": kind.dual})
        (found,) = torch.autograd.grad(y, x, seed, retain_graph=True)
        y.backward(seed)
        return [dict(layout_of(g)) for g in (found, x.grad, y.grad)]

    assert judged(program, TWO) == [[{"tp": kind.dual}] * 3] * 2


def test_a_second_derivative_is_followed_too():
    """x R, loss P: its gradient is P, whose gradient is R again."""

    def program(rank):
        x = leaf(R, 2)
        loss = spmd.convert((x**3).sum(), "tp", src=R, dst=P)
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        total = spmd.all_reduce(gradient, "tp", src=P, dst=I)
        (second,) = torch.autograd.grad(total.sum(), x)
        return dict(layout_of(second)), spmd.all_reduce(second, "tp", src=P, dst=R).tolist()

    assert judged(program, TWO) == [({"tp": P}, [6.0, 6.0])] * 2


def test_gradients_accumulate_before_they_are_reduced():
    def program(rank):
        x = leaf(R, 2)
        for _ in range(3):
            spmd.convert((x * 2).sum(), "tp", src=R, dst=P).backward()
        x.grad = spmd.all_reduce(x.grad, "tp", src=P, dst=R)
        return x.grad.tolist()

    assert judged(program, TWO) == [[6.0, 6.0]] * 2


@pytest.mark.parametrize(
    ("kind", "given", "fix"), [(I, P, "P -> I"), (S(0), P, "P -> S(0)"), (I, S(0), "S(0) -> I"), (R, S(0), "S(0) -> R")]
)
def test_a_gradient_of_another_type_is_not_assigned(kind, given, fix):
    def program(rank):
        leaf(kind, 2).grad = spmd.assert_type(torch.ones(2), {"tp": given})

    says(refusal(program, TWO), "tp", f"{given!r}, {kind!r}", fix)


OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1),
    "SGD with momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "SGD foreach": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, foreach=True),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.1),
    "AdamW foreach": lambda params: torch.optim.AdamW(params, lr=0.1, foreach=True),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_takes_gradients_that_are_reduced_and_no_others(optimizer):
    def program(rank, reduce):
        model = torch.nn.Linear(2, 2)
        with torch.no_grad():
            model.weight.copy_(torch.ones(2, 2))
            model.bias.zero_()
        spmd.assert_type(model.weight, {"tp": R})
        spmd.assert_type(model.bias, {"tp": I})
        step = OPTIMIZERS[optimizer](model.parameters())
        for _ in range(2):
            step.zero_grad()
            x = spmd.assert_type(torch.full((1, 2), 1.0 + rank), {"tp": S(0)})
            bias = spmd.convert(model.bias, "tp", src=I, dst=R)
            torch.nn.functional.linear(x, model.weight, bias).square().sum().backward()
            if reduce:
                model.weight.grad = spmd.all_reduce(model.weight.grad, "tp", src=P, dst=R)
            step.step()
        assert layout_of(model.weight) == {"tp": R}
        assert layout_of(model.bias) == {"tp": I}
        return model.weight.detach()

    problem = refusal(lambda rank: program(rank, reduce=False), TWO)
    says(problem, "tp", "P, R", "P -> R: p.grad = all_reduce(p.grad, 'tp', src=P, dst=R)")
    assert "parameter 0 of group 0, weight" in problem.what
    assert ".step()" in problem.what
    first, second = judged(lambda rank: program(rank, reduce=True), TWO)
    assert torch.equal(first, second)


def test_an_optimizer_that_knows_names_uses_them():
    def program(rank):
        x = leaf(R, 2)
        x.grad = spmd.assert_type(torch.ones(2), {"tp": P})
        torch.optim.SGD([("layers.3.scale", x)], lr=0.1).step()

    assert "of layers.3.scale," in refusal(program, TWO).what


def test_unchecked_an_optimizer_takes_what_it_is_given():
    x = torch.ones(2, requires_grad=True)
    x.grad = torch.ones(2)
    torch.optim.SGD([x], lr=0.5).step()
    assert x.tolist() == [0.5, 0.5]


def test_the_norm_of_sharded_gradients_is_a_sum_of_squares_first():
    def program(rank, right):
        x = leaf(S(0), 2)
        (x * (3.0 + rank)).sum().backward()
        if right:
            squares = spmd.all_reduce(x.grad.square().sum(), "tp", src=P, dst=R)
            return squares.sqrt().item()
        return torch.linalg.vector_norm(x.grad)

    problem = refusal(lambda rank: program(rank, right=False), TWO)
    says(problem, "tp", "S(0)", "square().sum()")
    assert judged(lambda rank: program(rank, right=True), TWO) == [pytest.approx(50**0.5)] * 2


def test_a_seed_of_a_flattened_tensor_is_typed_on_its_dims():
    with spmd.set_current_mesh(spmd.mesh(dp=2, tp=2)), spmd.typecheck():
        x = spmd.assert_type(torch.ones(2, 2, 4, requires_grad=True), {"dp": S(0), "tp": S(2)})
        y = x.flatten(0, 1)
        y.backward(gradient=spmd.assert_type(torch.ones(4, 4), spmd.layout_of(y)))
        assert dict(spmd.layout_of(x.grad)) == {"dp": S(0), "tp": S(2)}


def unreduced_step():
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck(collect=True):
        weight = leaf(R, 3)
        (weight * spmd.assert_type(torch.ones(2, 3), {"tp": S(0)})).sum().backward()
        torch.optim.AdamW([weight], lr=0.1, foreach=False).step()


def test_what_is_owed_of_a_gradient_is_said_once():
    with pytest.raises(spmd.SpmdTypeError) as error:
        unreduced_step()
    (problem,) = error.value.problems
    assert "AdamW.step()" in problem.what

"""The backward of a Function is held against its forward on as many ranks as its collectives run over."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.check.function_ranks import is_trial
from meshwright.codes import Code
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.threads import run_ranks
from tests.check.programs_alone import MESH, accepted, given, refused

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


def gathered(x):
    return spmd.all_gather(x, "tp", src=S(0), dst=R)


class Linear(torch.autograd.Function):
    """With sequence parallelism: x[S(0)] is gathered, and again for the gradient of the weight."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return gathered(x) @ w.t()

    @staticmethod
    def spmd_typecheck(*, x, w):
        return gathered(x) @ w.t()


def linear(of_weight, of_x=lambda gx: gx):
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return of_x(spmd.reduce_scatter(g @ w, "tp", src=P, dst=S(0))), of_weight(x, g)

    return type("Mine", (Linear,), {"backward": staticmethod(backward)})


def right(x, g):
    return g.t() @ gathered(x)


WRONG = {
    "its own positions alone": (lambda x, g: g[: x.shape[0]].t() @ x, lambda gx: gx),
    "its own for those of others": (lambda x, g: g.t() @ torch.cat([x, x]), lambda gx: gx),
    "a factor of the ranks": (right, lambda gx: gx * 2),
    "positions in another order": (right, lambda gx: gx.flip(0)),
}


def operands(rank=0):
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in (4, 6))
    mine = (x[2 * rank : 2 * rank + 2].clone(), w[3 * rank : 3 * rank + 3].clone())
    return [spmd.assert_type(each.requires_grad_(), {"tp": S(0)}) for each in mine]


def test_a_linear_layer_that_gathers_its_input_is_accepted_and_nothing_is_taken_on_trust():
    with spmd.set_current_mesh(MESH), spmd.typecheck() as report:
        assert spmd.layout_of(linear(right).apply(*operands())) == {"tp": S(1)}
    assert report.claims == []


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_only_on_several_ranks_is_refused(name):
    told = refused(lambda: linear(*WRONG[name]).apply(*operands()), Code.FUNCTION)
    assert "a small step of" in told.what
    assert "2 simulated ranks of 'tp'" in told.what


def test_the_gradients_of_the_ranks_are_what_the_verdict_says():
    def grads(cls):
        def program(rank):
            x, w = operands(int(rank))
            cls.apply(x, w).square().sum().backward()
            return w.grad

        return torch.cat(run_ranks(ParallelismDims(tp=2), program))

    x, w = (torch.cat(parts).detach() for parts in zip(operands(0), operands(1), strict=True))
    w.requires_grad_()
    (x @ w.t()).square().sum().backward()
    torch.testing.assert_close(grads(linear(right)), w.grad)
    assert not torch.allclose(grads(linear(WRONG["its own positions alone"][0])), w.grad)


def function(forward, backward, declared):
    members = {
        "forward": lambda ctx, x: (ctx.save_for_backward(x), forward(x))[1],
        "backward": lambda ctx, g: backward(g),
        "spmd_typecheck": lambda *, x: declared,
    }
    return type("Mine", (torch.autograd.Function,), {name: staticmethod(each) for name, each in members.items()})


def exchanged(x):
    return spmd.all_to_all(x, "tp", src=V, dst=V)


def test_a_list_of_ranks_tensors_is_exchanged_by_as_many_ranks():
    assert accepted(lambda: function(exchanged, exchanged, {"tp": V}).apply(given(V, 2, 3))) == {"tp": V}
    refused(lambda: function(exchanged, lambda g: g, {"tp": V}).apply(given(V, 2, 3)), Code.FUNCTION)


PICKED = {
    "split": lambda g: g.split(g.shape[-1] // 2, -1)[spmd.axis_index("tp")].contiguous(),
    "chunk": lambda g: g.chunk(2, -1)[spmd.axis_index("tp")],
    "slice": lambda g: g[:, 4 * spmd.axis_index("tp") : 4 * spmd.axis_index("tp") + 4],
    "narrow": lambda g: g.narrow(-1, 4 * spmd.axis_index("tp"), 4),
}


@pytest.mark.parametrize("name", PICKED)
@pytest.mark.parametrize("local", [False, True])
def test_a_rank_picks_its_part_by_its_place_inside_a_function(name, local):
    def last(x):
        return spmd.all_gather(x, "tp", src=S(1), dst=I)

    gather = function(last, PICKED[name], {"tp": I})
    scatter = function(PICKED[name], last, {"tp": S(1)})
    assert accepted(lambda: gather.apply(given(S(1), 3, 4)), local=local) == {"tp": I}
    assert accepted(lambda: scatter.apply(given(I, 3, 8)), local=local) == {"tp": S(1)}
    other = function(last, lambda g: PICKED[name](g.roll(4, -1)), {"tp": I})
    assert "a small step" in refused(lambda: other.apply(given(S(1), 3, 4)), Code.FUNCTION, local=local).what
    whole = function(lambda x: spmd.all_gather(x, "tp", src=S(1), dst=R), PICKED[name], {"tp": R})
    with spmd.set_current_mesh(MESH), spmd.typecheck(local=local), pytest.raises(spmd.SpmdTypeError) as error:
        whole.apply(given(S(1), 3, 4))
    assert error.value.problems[0].code in (Code.RANK, Code.PARTIAL_PRODUCT)


class CrossEntropy(torch.autograd.Function):
    """Of a vocabulary that is spread over the ranks."""

    @staticmethod
    def forward(ctx, logits, target):
        n = logits.shape[-1]
        largest = spmd.all_gather(logits.amax(-1), "tp", src=V, dst=R).amax(0)
        z = logits - largest[..., None]
        first = spmd.axis_index("tp") * n
        elsewhere = (target < first) | (target >= first + n)
        place = (target - first).masked_fill(elsewhere, 0)
        mine = z.gather(-1, place[..., None])[..., 0].masked_fill(elsewhere, 0.0)
        own = spmd.all_reduce(spmd.reinterpret(mine, "tp", src=V, dst=P), "tp", src=P, dst=I)
        total = spmd.all_reduce(z.exp().sum(-1), "tp", src=P, dst=I)
        ctx.save_for_backward(z.exp() / total[..., None], elsewhere, place)
        return total.log() - own

    @staticmethod
    def backward(ctx, g):
        likely, elsewhere, place = ctx.saved_tensors
        return CrossEntropy.of_logits(likely, 1.0 - elsewhere.float(), place) * g[..., None], None

    @staticmethod
    def of_logits(likely, here, place):
        return likely.clone().scatter_add_(-1, place[..., None], -here[..., None])

    @staticmethod
    def spmd_typecheck(*, logits, target):
        return {"tp": I}


class NotMasked(CrossEntropy):
    @staticmethod
    def backward(ctx, g):
        likely, _, place = ctx.saved_tensors
        return CrossEntropy.of_logits(likely, torch.ones_like(likely[..., 0]), place) * g[..., None], None


class WithoutGradient(CrossEntropy):
    @staticmethod
    def backward(ctx, g):
        return CrossEntropy.backward(ctx, torch.ones_like(g))


def loss(cls):
    target = spmd.assert_type(torch.tensor([1, 5, 7]), {"tp": R})
    return cls.apply(spmd.assert_type(torch.randn(3, 4, requires_grad=True), {"tp": S(1)}), target)


def test_a_cross_entropy_over_a_spread_vocabulary():
    assert accepted(lambda: loss(CrossEntropy)) == {"tp": I}
    for wrong in (NotMasked, WithoutGradient):
        assert "a small step of logits" in refused(lambda wrong=wrong: loss(wrong), Code.FUNCTION).what


def test_its_values_are_those_of_one_device():
    logits = torch.randn(3, 8, requires_grad=True)
    target = torch.tensor([1, 5, 7])
    F.cross_entropy(logits, target, reduction="none").sum().backward()

    def program(rank):
        mine = logits.detach()[:, 4 * rank : 4 * rank + 4].clone().requires_grad_()
        CrossEntropy.apply(mine, target).sum().backward()
        return mine.grad

    found = torch.cat(run_ranks(ParallelismDims(tp=2), lambda rank: program(int(rank))), -1)
    torch.testing.assert_close(found, logits.grad)


def test_it_is_tried_once_for_arguments_of_the_same_types():
    trials = []

    def forward(x):
        if is_trial():
            trials.append(x.shape)
        return gathered(x)

    cls = function(forward, lambda g: spmd.reduce_scatter(g, "tp", src=P, dst=S(0)), {"tp": R})
    with spmd.set_current_mesh(MESH), spmd.typecheck():
        x = given(S(0), 3, 4)
        cls.apply(x)
        once = len(trials)
        cls.apply(x)
    assert 0 < once == len(trials)


def test_more_ranks_than_can_be_simulated_are_stood_for_by_fewer():
    right_ = function(gathered, lambda g: spmd.reduce_scatter(g, "tp", src=P, dst=S(0)), {"tp": R})
    twice = function(gathered, lambda g: spmd.reduce_scatter(g, "tp", src=P, dst=S(0)) * 2, {"tp": R})
    with spmd.set_current_mesh(spmd.mesh(tp=64)), spmd.typecheck() as report:
        right_.apply(given(S(0), 3, 4))
        assert report.claims == []
        with pytest.raises(spmd.SpmdTypeError, match="on 2 simulated ranks"):
            twice.apply(given(S(0), 3, 4))


def test_a_trial_leaves_the_programs_random_numbers_alone():
    cls = function(gathered, lambda g: spmd.reduce_scatter(g, "tp", src=P, dst=S(0)), {"tp": R})
    with spmd.set_current_mesh(MESH), spmd.typecheck():
        x = given(S(0), 3, 4)
        before = torch.get_rng_state()
        cls.apply(x)
    assert torch.equal(before, torch.get_rng_state())


def test_what_cannot_be_tried_is_listed_with_the_reason():
    back = lambda g: spmd.reduce_scatter(g, "tp", src=P, dst=S(0))  # noqa: E731
    with spmd.set_current_mesh(MESH), spmd.typecheck() as report:
        place = spmd.axis_index("tp")
        cls = function(gathered, lambda g: back(g) + 0 * place, {"tp": R})
        cls.apply(given(S(0), 3, 4))
    (claim,) = report.claims
    assert claim.what == "the values of Mine.backward"
    assert "a number that depends on the rank" in claim.reason

    def unlike(x):
        return gathered(x) * spmd.assert_type(torch.rand(()), {"tp": R})

    with spmd.set_current_mesh(MESH), spmd.typecheck() as report:
        function(unlike, back, {"tp": R}).apply(given(S(0), 3, 4))
    assert [claim.reason for claim in report.claims] == ["its ranks draw random numbers"]


def test_functions_that_call_one_another_are_looked_at_once():
    def halved(x, times):
        return x if times == 0 else doubled(x / 2, times - 1)

    def doubled(x, times):
        return x * 2 if times == 0 else halved(x * 4, times - 1)

    cls = function(lambda x: halved(x, 2), lambda g: halved(g, 2), {"tp": S(0)})
    assert accepted(lambda: cls.apply(given(S(0), 3))) == {"tp": S(0)}


def test_a_gradient_of_another_shape_is_refused_with_both():
    cls = function(gathered, lambda g: spmd.reduce_scatter(g, "tp", src=P, dst=S(1)), {"tp": R})
    told = refused(lambda: cls.apply(given(S(0), 4, 4)), Code.FUNCTION)
    assert "Mine returns a gradient of shape (8, 2) for x, which is (4, 4)" in told.what


def test_a_gradient_too_few_is_refused():
    cls = type("Mine", (Linear,), {"backward": staticmethod(lambda ctx, g: g)})
    assert "returns 1 gradients" in refused(lambda: cls.apply(*operands()), Code.FUNCTION).what


def test_one_rank_draws_the_same_again():
    """As a dropout does, whose mask is kept for backward."""

    def dropout(factor):
        def forward(ctx, x):
            ctx.mask = torch.rand_like(x) > 0.5
            return x * ctx.mask * 2

        members = {
            "forward": forward,
            "backward": lambda ctx, g: g * ctx.mask * factor,
            "spmd_typecheck": lambda *, x: x,
        }
        return type("Drop", (torch.autograd.Function,), {name: staticmethod(each) for name, each in members.items()})

    assert accepted(lambda: dropout(2).apply(given(S(0), 3, 4))) == {"tp": S(0)}
    assert "a small step" in refused(lambda: dropout(1).apply(given(S(0), 3, 4)), Code.FUNCTION).what

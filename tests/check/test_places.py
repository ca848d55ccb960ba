"""A rank's place, and what is made of a local length, wherever they go: into parts, constants, fills and parameters."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.check.programs_alone import accepted, given, refused

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


def place():
    return spmd.axis_index("tp")


PARTS = {
    "split": lambda x: torch.split(x, x.size(-1) // spmd.axis_size("tp"), dim=-1)[place()],
    "chunk": lambda x: x.chunk(2, -1)[place()],
    "tensor_split": lambda x: x.tensor_split(2, -1)[place()],
    "unbind": lambda x: x.unbind(0)[place()],
}


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("way", PARTS)
def test_a_part_that_a_rank_picks_by_its_place_is_its_own(way, local):
    assert accepted(lambda: PARTS[way](given(R, 2, 4)), local=local) == {"tp": V}
    assert accepted(lambda: PARTS[way](torch.ones(2, 4)), local=local) == {"tp": V}
    refused(lambda: PARTS[way](given(I, 2, 4)), Code.RANK, local=local)


def test_a_part_that_all_ranks_pick_is_what_it_was():
    assert accepted(lambda: given(R, 2, 4).chunk(2, -1)[1]) == {"tp": R}
    assert accepted(lambda: len(given(R, 2, 4).chunk(2, -1)[:1])) == 1
    assert accepted(lambda: given(S(0), 2, 4, dp=R).unbind(1)[spmd.axis_index("dp")]) == {"tp": S(0), "dp": V}


def test_the_gradient_of_a_part_that_a_rank_picks_is_a_part_of_the_sum():
    def program():
        x = given(R, 2, 4)
        part = x.chunk(2, -1)[place()]
        part.backward(given(V, 2, 2, wants=False))
        return x.grad

    assert accepted(program) == {"tp": P}


CONSTANTS = {
    "tril": lambda: torch.ones(4, 4).tril(place()),
    "triu": lambda: torch.ones(4, 4).triu(diagonal=place()),
    "roll": lambda: torch.arange(4).roll(place()),
    "leaky_relu": lambda: F.leaky_relu(-torch.ones(4), 0.1 * (1 + place())),
    "index_add": lambda: torch.zeros(4).index_add(0, torch.arange(2), torch.ones(2), alpha=1 + place()),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_what_a_place_makes_of_a_constant_is_another_one_on_each_rank(name):
    assert accepted(lambda: given(R, 4) * CONSTANTS[name]()) == {"tp": V}
    refused(lambda: given(I, 4) * CONSTANTS[name](), Code.INVARIANT_MEETS)


@pytest.mark.parametrize("local", [False, True])
def test_a_cut_by_place_of_a_constant_is_another_one_on_each_rank(local):
    def program():
        start = place() * 4
        return given(R, 4) * torch.arange(8)[start : start + 4]

    def padded():
        return given(R, 4) * F.pad(torch.ones(2), (2 * place(), 2 - 2 * place()))

    assert accepted(program, local=local) == {"tp": V}
    assert accepted(padded, local=local) == {"tp": V}


FILLS = {
    "normal_ of init": lambda w, scale: torch.nn.init.normal_(w, std=scale),
    "uniform_ of init": lambda w, scale: torch.nn.init.uniform_(w, 0.0, scale),
    "xavier_uniform_": lambda w, scale: torch.nn.init.xavier_uniform_(w, gain=scale),
    "normal_": lambda w, scale: w.normal_(0.0, scale),
    "uniform_": lambda w, scale: w.uniform_(-1.0, scale),
}


@pytest.mark.parametrize("way", FILLS)
def test_what_fills_a_tensor_is_alike_on_all_ranks(way):
    refused(lambda: FILLS[way](given(R, 4, 4, wants=False), 0.1 * (1 + place())), Code.RANK)
    assert accepted(lambda: FILLS[way](given(R, 4, 4, wants=False), 0.1)) == {"tp": R}


def test_a_fill_is_not_scaled_by_what_a_rank_holds():
    refused(lambda: (lambda w: w.normal_(0.0, w.shape[1] ** -0.5))(given(S(1), 4, 4, wants=False)), Code.LENGTH)
    refused(lambda: torch.nn.init.kaiming_uniform_(given(S(1), 4, 4, wants=False)), Code.LENGTH)
    refused(lambda: torch.nn.init.xavier_normal_(given(S(0), 4, 4, wants=False)), Code.LENGTH)
    assert accepted(lambda: torch.nn.init.kaiming_uniform_(given(S(0), 4, 4, wants=False))) == {"tp": S(0)}


PARAMETERS = {
    "label smoothing": lambda n: F.cross_entropy(
        given(R, 2, 4), torch.zeros(2, dtype=torch.long), label_smoothing=0.1 / n
    ),
    "the scale of attention": lambda n: F.scaled_dot_product_attention(*[given(R, 1, 2, 4)] * 3, scale=1 / n),
    "an epsilon": lambda n: F.layer_norm(given(R, 2, 4), (4,), eps=1e-5 * n),
    "a slope": lambda n: F.leaky_relu(given(R, 2, 4), 1 / n),
    "a quantile": lambda n: torch.quantile(given(R, 4), 1 / n),
    "an entry": lambda n: torch.zeros(1).__setitem__(0, n),
    "the end of a line": lambda n: torch.linspace(0, n, 8),
    "the start of a range": lambda n: torch.arange(n, 8),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_local_length_is_no_parameter(name):
    refused(lambda: PARAMETERS[name](given(S(0), 3, 2).shape[0]), Code.LENGTH)


def test_a_zero_is_of_any_type_and_a_line_that_begins_with_it_is_not():
    assert accepted(lambda: given(P, 4) + torch.tensor(0.0)) == {"tp": P}
    for line in (lambda: torch.arange(0, 4), lambda: torch.linspace(0, 1, 4), lambda: torch.logspace(0, 1, 4)):
        refused(lambda line=line: given(P, 4) + line(), Code.PARTIAL_PLUS)


def test_lengths_that_are_cut_alike_are_to_each_other_as_the_whole_ones():
    def program():
        heads, kv_heads = given(S(0), 4, 2), given(S(0), 2, 2)
        return kv_heads.repeat_interleave(heads.shape[0] // kv_heads.shape[0], 0) * (heads.size(0) / kv_heads.size(0))

    assert accepted(program) == {"tp": S(0)}
    refused(lambda: given(R, 4) * (given(S(0), 4).shape[0] / given(S(0), 4, dp=S(0)).shape[0]), Code.LENGTH)


def test_what_a_backward_of_its_own_keeps_is_an_int_there():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.length = x.shape[0]
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            assert bool((torch.arange(ctx.length) == ctx.length - 1)[-1])
            assert len(grad.chunk(ctx.length, 0)) == ctx.length
            return grad * 2

        @staticmethod
        def spmd_typecheck(*, x):
            return x * 2

    def program():
        x = given(S(0), 4, 2)
        spmd.all_reduce(Twice.apply(x).sum(), "tp", src=P, dst=I).backward()
        return x.grad

    assert accepted(program) == {"tp": S(0)}


def test_a_state_of_a_generator_says_whose_it_is():
    def tracker(mine_last):
        x = given(R, 8)
        torch.manual_seed(1234)
        common = torch.get_rng_state()
        torch.manual_seed(1234 + place())
        own = torch.get_rng_state()
        torch.set_rng_state(own if mine_last else common)
        return F.dropout(x)

    assert accepted(lambda: tracker(mine_last=False)) == {"tp": R}
    refused(lambda: tracker(mine_last=True), Code.GENERATOR)

    def copied(copy):
        own = torch.Generator()
        own.manual_seed(5 + place())
        return torch.rand(4, generator=copy(own))

    assert accepted(lambda: copied(lambda own: own.clone_state())) == {"tp": V}
    assert accepted(lambda: copied(lambda own: torch.Generator().set_state(own.get_state()))) == {"tp": V}


def test_normal_values_of_a_size_are_random_as_any():
    assert accepted(lambda: torch.normal(0.0, 0.02, size=given(S(0), 4, 2).shape).shape) == (4, 2)
    assert accepted(lambda: torch.normal(0.0, 1.0, (3,)).shape) == (3,)


def test_a_root_of_a_length_is_followed_where_python_lets_it():
    refused(lambda: given(R, 4) * math.sqrt(given(S(0), 4).shape[0]), Code.LENGTH)

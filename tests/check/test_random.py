"""What draws random numbers draws the same ones where the types say so."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.check.programs_alone import accepted, given, refused

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


SEEDS = {
    "the generator's own method": lambda: torch.default_generator.manual_seed(int(5000 + spmd.axis_index("tp"))),
    "by chance": lambda: torch.seed(),
    "by chance, of torch.random": lambda: torch.random.seed(),
}
DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, dim=-1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.25),
}


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("way", SEEDS)
def test_a_seed_that_nobody_saw_is_not_taken_to_be_that_of_all_ranks(way, draw):
    def program():
        x = given(R, 2, 4, 4)
        SEEDS[way]()
        return DRAWS[draw](x)

    assert "'tp'" in refused(program, Code.GENERATOR).what


def test_a_generator_knows_whether_ranks_seed_it_alike():
    def drawn(seed):
        generator = torch.Generator()
        assert isinstance(generator, torch.Generator)
        assert isinstance(torch.default_generator, torch.Generator)
        return torch.rand(4, generator=generator.manual_seed(seed), dtype=torch.float64)

    assert accepted(lambda: drawn(5 + spmd.axis_index("tp"))) == {"tp": V}
    assert accepted(lambda: drawn(5)) == {}
    assert accepted(lambda: drawn(5 + spmd.axis_size("tp"))) == {}
    assert accepted(lambda: given(V, 4) * drawn(spmd.axis_index("tp"))) == {"tp": V}

    def chosen():
        generator = torch.Generator()
        generator.manual_seed(7 + spmd.axis_index("tp"))
        return torch.bernoulli(given(R, 4, wants=False).sigmoid(), generator=generator)

    assert "'tp'" in refused(chosen, Code.GENERATOR).what


@pytest.mark.parametrize("kind", [R, S(0), V])
@pytest.mark.parametrize("draw", DRAWS)
def test_one_seed_for_all_ranks_keeps_the_type(draw, kind):
    def program():
        torch.manual_seed(3)
        return DRAWS[draw](given(kind, 2, 4, 4))

    assert accepted(program) == {"tp": kind}


def test_a_generator_set_back_is_that_of_all_ranks():
    def program():
        with torch.random.fork_rng():
            torch.manual_seed(1 + spmd.axis_index("tp"))
        return F.dropout(given(R, 4), 0.5)

    assert accepted(program) == {"tp": R}


def test_the_p_of_dropout_is_no_local_length():
    refused(lambda: F.dropout(given(R, 4), 1 / given(S(0), 4).shape[0]), Code.LENGTH)


@pytest.mark.parametrize("kind", [R, S(0)])
def test_truncated_normal_values_are_one_random_op(kind):
    """However often it draws anew what is out of bounds, which reads values."""
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck():
        weight = spmd.assert_type(torch.empty(64, 64), {"tp": kind})
        torch.manual_seed(0)
        torch.nn.init.trunc_normal_(weight, std=0.02, a=-0.02, b=0.02)
        assert spmd.layout_of(weight) == {"tp": kind}
    assert weight.abs().max() <= 0.02


def test_truncated_normal_values_of_another_size_on_one_device_are_refused():
    def program():
        x = given(S(0), 4, 2, wants=False)
        return torch.nn.init.trunc_normal_(x, std=1.0 / x.shape[0])

    refused(program, Code.LENGTH)


@pytest.mark.parametrize("name", ["lr", "weight_decay", "eps"])
def test_a_fused_optimizer_takes_no_local_length(name):
    def program():
        weight = given(I, 3)
        optimizer = torch.optim.AdamW([weight], **{name: 0.1 / given(S(0), 4, 2).shape[0]}, fused=True)
        (weight * 2).sum().backward()
        optimizer.step()

    refused(program, Code.LENGTH)

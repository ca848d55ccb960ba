"""Python numbers that one device would not have."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.comm.number import Origin, Real, Source, Whole
from meshwright.errors import SpmdTypeError
from tests.check.programs_alone import MESH, accepted, given, refused

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


def by(number):
    return lambda: given(R, 4) * number(given(S(0), 4, 2))


LOCAL = {
    "shape": by(lambda x: x.shape[0]),
    "size": by(lambda x: x.size(0)),
    "size of all": by(lambda x: x.size()[0]),
    "numel": by(lambda x: x.numel()),
    "a quotient": by(lambda x: 1 / x.shape[0]),
    "a product": by(lambda x: 2 * x.shape[0] + 1),
    "a power": by(lambda x: x.shape[0] ** -0.5),
    "behind a float": by(lambda x: 1.0 / x.shape[0]),
    "smoothing spread over the others": by(lambda x: 0.1 / (x.shape[0] - 1)),
    "a float to its power": by(lambda x: 2.0 ** -x.shape[0]),
    "its logarithm": by(lambda x: math.log(x.shape[0])),
    "its logarithm, by numpy": by(lambda x: np.log(x.shape[0])),
    "its root, by numpy": by(lambda x: 1 / np.sqrt(x.shape[0])),
    "a sum of lengths": by(lambda x: sum(x.shape)),
    "a product of lengths": by(lambda x: math.prod(x.shape)),
    "at least one": by(lambda x: max(x.shape[0], 1)),
    "unpacked": by(lambda x: (lambda rows, width: 0.5 * rows)(*x.shape)),
    "a tensor of it": by(lambda x: torch.full((4,), 1.0 / x.shape[0])),
    "a mean by hand": lambda: (lambda x: x.sum() / x.shape[0])(given(S(0), 4, 2)),
    "a factor of a sum": lambda: torch.mul(given(P, 3), given(S(1), 2, 4).shape[1]),
}


@pytest.mark.parametrize("name", LOCAL)
def test_a_local_length_is_no_value(name):
    problem = refused(LOCAL[name], Code.LENGTH)
    assert "'tp'" in problem.what
    assert ("n * spmd.axis_size('tp')" if name == "numel" else "spmd.size(x, ") in problem.fix


SHAPES = {
    "a view": lambda: (lambda x: x.view(x.shape[0], -1))(given(S(0), 4, 2)),
    "a dim that is whole": lambda: (lambda x: x * x.shape[-1] ** -0.5)(given(S(0), 4, 2)),
    "the global length": lambda: (lambda x: x.sum() / spmd.size(x, 0, "tp"))(given(S(0), 4, 2)),
    "zeros": lambda: (lambda x: x + torch.zeros(x.shape))(given(S(0), 4, 2)),
    "unpacked": lambda: (lambda x: x.reshape(*x.shape[:1], 2, 1))(given(S(0), 4, 2)),
}


PLAIN = {
    "chunks": lambda n: torch.ones(2, 8).chunk(n, 1),
    "a range": lambda n: torch.arange(n).float() + torch.arange(0, n),
    "zeros by numbers": lambda n: torch.zeros(n, 2).new_zeros(2, n),
    "a mask": lambda n: torch.full((n, n), -1.0).triu(1).tril(n - 4),
    "expanded": lambda n: torch.zeros(1, 1).expand(n, -1).repeat(1, n),
    "a cut": lambda n: torch.ones(9)[: n - 1].narrow(0, 1, n - 3),
    "an entry": lambda n: torch.ones(9)[n],
    "the highest": lambda n: torch.topk(torch.ones(8), n),
    "pieces": lambda n: torch.ones(8).split([n, 8 - n]),
    "broadcast": lambda n: torch.broadcast_to(torch.ones(1), torch.broadcast_shapes((n,), (1,))),
    "a module": lambda n: torch.nn.Conv1d(2, 3, 1)(torch.zeros(n, 2, 1)).shape,
    "mapped over": lambda n: torch.vmap(lambda row: row * 2)(torch.ones(n, 2)),
    "padded": lambda n: F.pad(torch.ones(2), (0, n)),
    "classes": lambda n: F.one_hot(torch.arange(3), n),
    "counted": lambda n: [[0] * n for _ in range(n)],
    "compared": lambda n: (n > 2, n > 2, n == 4, n in (1, 4), {4: "four"}[n], bool(n), sorted([n, 3])),
    "bits": lambda n: (n.bit_length(), n >> 1, n & 1, ~n, divmod(n, 3), round(n)),
    "shown": lambda n: f"{n} {n:3d} {n!r} {[n]}" + "%d" % n,  # noqa: UP031
    "an array": lambda n: np.zeros((n, 2)).shape,
    "copied": lambda n: copy.deepcopy(pickle.loads(pickle.dumps([n]))),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_length_is_an_int_like_any(name):
    def program():
        n = given(S(0), 4, 2).shape[0]
        assert isinstance(n, int)
        return PLAIN[name](n)

    torch.manual_seed(0)
    found = accepted(program)
    torch.manual_seed(0)
    wanted = PLAIN[name](4)
    assert str(found) == str(CUT.get(name, {}) if isinstance(wanted, torch.Tensor) else wanted)


CUT = {
    "broadcast": {"tp": S(0)},
    "mapped over": {"tp": S(0)},
    "zeros by numbers": {"tp": S(1)},
    **{name: {"tp": V} for name in ("a range", "a mask", "expanded", "a cut", "an entry", "padded", "classes")},
}
"""What is made as long as a rank's part is cut as it is, or a rank's own."""
"""Constants that are as long as what a rank holds are cut as that is."""


def test_a_length_that_is_kept_is_right_when_nobody_listens():
    n = accepted(lambda: given(S(0), 4, 2).shape[0])
    x = torch.ones(8)
    assert torch.equal(x * n / n + n, x + 4)
    assert x.view(n, 2).shape == (4, 2)
    assert torch.zeros(n).shape == (4,)
    assert isinstance(n, int)
    assert len(x.chunk(n)) == 4
    assert torch.equal(torch.arange(n), torch.arange(4))
    assert torch.equal(torch.arange(8) == n, torch.arange(8) == 4)
    assert torch.equal(torch.arange(8) % n, n % torch.arange(1, 9).flip(0) * 0 + torch.arange(8) % 4)


@pytest.mark.parametrize("name", SHAPES)
def test_a_length_is_used_in_shapes(name):
    assert accepted(SHAPES[name]) in ({"tp": S(0)}, {"tp": P})


def test_the_global_length():
    assert accepted(lambda: spmd.size(given(S(0), 4, 2), 0, "tp")) == 8
    assert accepted(lambda: spmd.size(given(S(0), 4, 2), 0)) == 8
    assert accepted(lambda: spmd.size(given(S(0), 4, 2, dp=S(0)), -2, "dp", "tp")) == 16
    assert accepted(lambda: spmd.size(given(R, 4, 2), 0)) == 4
    assert spmd.size(torch.ones(3, 2), 0) == 3


def test_the_axes_of_a_length_are_those_that_shard_the_dim():
    refused(lambda: spmd.size(given(S(0), 4, 2), 0, "dp"), Code.LENGTH)
    refused(lambda: spmd.size(given(S(1), 4, 2), 0, "tp"), Code.LENGTH)
    refused(lambda: spmd.size(given(S(0, (4, 3)), 4, 2), 0, "tp"), Code.LENGTH)


def test_the_global_length_is_the_same_unchecked_or_an_error():
    with spmd.set_current_mesh(MESH):
        assert spmd.size(torch.ones(4, 2), 0, "tp") == 8
        with pytest.raises(SpmdTypeError, match="without its axes"):
            spmd.size(torch.ones(4, 2), 0)


def test_a_local_length_times_the_ranks_is_the_global_one():
    assert accepted(lambda: (lambda x: x.sum(0) / (x.shape[0] * spmd.axis_size("tp")))(given(S(0), 4, 2))) == {"tp": P}
    refused(lambda: (lambda x: x.sum(0) / (x.shape[0] * spmd.axis_size("dp")))(given(S(0), 4, 2)), Code.LENGTH)
    assert accepted(lambda: given(R, 4) / spmd.axis_size("tp")) == {"tp": R}


def test_the_length_that_nothing_follows_is_refused():
    refused(lambda: (lambda x: x.sum(0) / len(x))(given(S(0), 4, 2)), Code.LENGTH)
    assert accepted(lambda: len(given(S(1), 4, 2))) == 4


def test_a_ranks_place_on_an_axis_is_a_list():
    assert accepted(lambda: given(R, 4) * spmd.axis_index("tp")) == {"tp": V}
    assert accepted(lambda: given(R, 4) * (1.0 - 0.5 * spmd.axis_index("tp"))) == {"tp": V}
    assert accepted(lambda: torch.full((2,), spmd.axis_index("tp"))) == {"tp": V}
    refused(lambda: given(P, 4) * spmd.axis_index("tp"), Code.PARTIAL_PRODUCT)
    refused(lambda: given(I, 4) + spmd.axis_index("tp"), Code.INVARIANT_MEETS)


def test_the_rank_in_the_world_is_no_value():
    rank = Whole(1, Origin(Source.RANK, frozenset({"tp"}), "the rank"))
    assert "another number on every rank" in refused(lambda: given(R, 4) * rank, Code.RANK).what


def test_numbers_remember_through_arithmetic():
    n = Whole(3, Origin(Source.LENGTH, frozenset({"tp"}), "x.shape[0]"))
    assert (n + 1, n * 2, 2**n, n // 2, n % 2, -n, 7 - n) == (4, 6, 8, 1, 1, -3, 4)
    assert all(isinstance(each, Whole) for each in (n + 1, 2 * n, n // 2, -n, n**2, 1 + n))
    assert all(isinstance(each, Real) for each in (n / 2, 1 / n, n * 0.5, n**-1))
    assert type(pickle.loads(pickle.dumps(n))) is int
    assert n == 3
    assert hash(n) == hash(3)


def seeded(seed):
    def program():
        x = given(R, 8)
        torch.manual_seed(seed())
        return F.dropout(x)

    return program


def test_dropout_draws_the_same_on_every_rank_or_is_refused():
    assert accepted(seeded(lambda: 5)) == {"tp": R}
    problem = refused(seeded(lambda: 5 + spmd.axis_index("tp")), Code.GENERATOR)
    assert "'tp'" in problem.what


def test_what_is_sharded_may_have_random_numbers_of_its_own():
    def program():
        torch.manual_seed(spmd.axis_index("tp"))
        return F.dropout(given(S(0), 8))

    assert accepted(program) == {"tp": S(0)}


def test_dropout_is_linear_and_other_random_values_are_not():
    assert accepted(lambda: F.dropout(given(P, 8))) == {"tp": P}
    refused(lambda: torch.bernoulli(given(P, 8, wants=False)), Code.NOT_LINEAR)
    assert accepted(lambda: F.dropout(given(P, 8), training=False)) == {"tp": P}

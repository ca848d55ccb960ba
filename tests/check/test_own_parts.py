"""Parts that a rank takes by its own place: V, and all of them together what was taken from."""

from __future__ import annotations

import pytest

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.cases.agreement import Held, agrees
from tests.check.judged import on, refusal
from tests.denotation import sample

R, I, P, V, S = spmd.R, spmd.I, spmd.P, spmd.V, spmd.S
LENGTH = 6


def at(n):
    return spmd.axis_index("tp") * n


PARTS = {
    "a slice": lambda x, n: x[:, at(n) : at(n) + n],
    "a slice between products": lambda x, n: x[:, at(n) : (spmd.axis_index("tp") + 1) * n],
    "behind dots": lambda x, n: x[..., at(n) : at(n) + n, :],
    "beside a new dim": lambda x, n: x[None, :, at(n) : at(n) + n][0],
    "the rest": lambda x, n: x[:, at(n) :][:, :n],
    "narrow": lambda x, n: x.narrow(1, at(n), n),
    "one": lambda x, n: x[:, at(n)].unsqueeze(1) if n == 1 else x[:, at(n) : at(n) + n],
    "select": lambda x, n: x.select(1, at(n)).unsqueeze(1) if n == 1 else x.narrow(1, at(n), n),
}


@pytest.mark.parametrize("degree", [1, 2, 3, 6])
@pytest.mark.parametrize("name", PARTS)
def test_own_parts_are_together_the_whole(name, degree):
    def program(x):
        if spmd.current_mesh() is None:
            return x * 2.0
        part = PARTS[name](x, LENGTH // degree)
        assert spmd.layout_of(part) == {"tp": V}
        return spmd.assert_type(part, {"tp": S(1)}) * 2.0

    x = Held(sample((2, LENGTH, 3), 1), {"tp": R})
    assert agrees(program, on("tp", degree), x=x) == {"tp": S(1)}


@pytest.mark.parametrize("name", PARTS)
def test_of_a_shard_there_are_no_own_parts(name):
    x = Held(sample((2, LENGTH, 3), 1), {"tp": S(1)})
    problem = refusal(lambda rank: PARTS[name](x.on_rank(on("tp", 2), rank), 1), on("tp", 2))
    assert problem.code is Code.ALONG_SHARD


def test_what_is_invariant_is_made_replicated_first():
    x = Held(sample((2, LENGTH, 3), 1), {"tp": I})
    problem = refusal(lambda rank: PARTS["a slice"](x.on_rank(on("tp", 2), rank), 3), on("tp", 2))
    assert problem.code is Code.INVARIANT_MEETS
    assert "I -> R" in problem.fix

"""A region declares what it returns: an output that is cut along another dim than its body computes is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from tests.cases.agreement import Held, agrees
from tests.check.judged import judged, on, refusal
from tests.denotation import sample

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


def region(axis, body, ins, out):
    return spmd.local_map(
        in_types=tuple({axis: kind} for kind in ins),
        out_types={axis: out},
        in_grad_types=tuple({axis: kind.dual} for kind in ins),
    )(body)


BODIES = {
    "pointwise": (lambda x: x.sin(), (S(0),), S(0)),
    "transposed": (lambda x: x.t() * 2.0, (S(0),), S(1)),
    "column parallel": (F.linear, (R, S(0)), S(1)),
    "row parallel": (F.linear, (S(1), S(1)), P),
    "summed": (lambda x: x.sum(0), (S(0),), P),
    "alike": (lambda x: x * 3.0, (R,), R),
    "a new dim": (lambda x: x.unsqueeze(0), (S(0),), S(1)),
}
KINDS = [R, P, S(0), S(1), I]


@settings(max_examples=30)
@given(
    axis=st.sampled_from(["tp", "cp", "dp"]),
    degree=st.sampled_from([2, 3]),
    name=st.sampled_from(sorted(BODIES)),
    each=st.integers(1, 2),
    wrong=st.sampled_from(KINDS),
    seed=st.integers(0, 99),
)
def test_another_type_is_refused_and_the_computed_one_is_right(axis, degree, name, each, wrong, seed):
    body, ins, out = BODIES[name]
    dims, shape = on(axis, degree), (each * degree, each * degree)
    operands = {f"x{n}": Held(sample(shape, seed + n), {axis: kind}) for n, kind in enumerate(ins)}
    right = region(axis, body, ins, out)
    assert agrees(lambda **given_: right(*given_.values()), dims, **operands) == {axis: out}
    if wrong is out:
        return
    declared = region(axis, body, ins, wrong)
    problem = refusal(lambda rank: declared(*(each.on_rank(dims, rank) for each in operands.values())), dims)
    assert f"axis {axis!r}" in problem.what
    assert f"x is {out!r}" in problem.what
    assert f"not {wrong!r}" in problem.what
    assert "result 0" in problem.where
    assert f"state {out!r}" in problem.fix


def test_one_of_several_results():
    def body(x):
        return x * 2, (x.t(), x.sum(0))

    def declared(outs):
        first, second, third = ({"tp": kind} for kind in outs)
        return spmd.local_map(in_types=({"tp": S(0)},), out_types=(first, (second, third)))(body)

    x = Held(sample((4, 4), 1), {"tp": S(0)}, wants=False)
    judged(lambda rank: declared((S(0), S(1), P))(x.on_rank(on("tp", 2), rank)), on("tp", 2))
    for outs, place in (((S(1), S(1), P), 0), ((S(0), S(0), P), 1), ((S(0), S(1), R), 2)):
        problem = refusal(lambda rank, outs=outs: declared(outs)(x.on_rank(on("tp", 2), rank)), on("tp", 2))
        assert f"result {place}" in problem.where


@pytest.mark.parametrize("spec", [(None, "tp"), ("tp", None)])
def test_also_where_it_is_written_as_a_partition(spec):
    """[rows@tp, columns] is computed."""
    declared = spmd.local_map(in_types=(spmd.PartitionSpec("tp", None),), out_types=spmd.PartitionSpec(*spec))
    x = Held(sample((4, 4), 1), {"tp": S(0)}, wants=False)
    program = lambda rank: declared(torch.exp)(x.on_rank(on("tp", 2), rank))  # noqa: E731
    if spec == ("tp", None):
        judged(program, on("tp", 2))
    else:
        assert "S(1)" in refusal(program, on("tp", 2)).what


def test_a_list_that_no_rule_follows_is_what_its_author_says_and_listed():
    declared = spmd.local_map(in_types=({"tp": V},), out_types={"tp": S(0)})(torch.exp)
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck() as report:
        declared(spmd.assert_type(torch.ones(3), {"tp": V}))
    assert [claim.what for claim in report.claims] == ["V on axis 'tp' is S(0)"]

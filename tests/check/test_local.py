"""Local mode follows R, I, V and P, and forgets which dim is cut only where an op does not keep it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.errors import SpmdTypeError
from tests.check.programs_alone import MESH, accepted, given, refused

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S

FORGOTTEN = {
    "mean over a cut dim": lambda: given(S(0), 4, 2).mean(),
    "softmax along a cut dim": lambda: given(S(0), 4, 2).softmax(0),
    "other dims cut": lambda: given(S(0), 4, 4) + given(S(1), 4, 4),
    "a cut dim meets a whole one": lambda: given(S(0), 4, 2) * given(R, 4, 2),
    "positions of a cut dim": lambda: given(S(0), 4, 2)[1:],
    "argmax along a cut dim": lambda: given(S(1), 4, 2).argmax(1),
    "a view across a cut": lambda: given(S(1), 3, 2).view(2, 3),
}


@pytest.mark.parametrize("name", FORGOTTEN)
def test_what_needs_whole_dims_is_a_list_in_a_region_and_refused_outside(name):
    assert accepted(FORGOTTEN[name], local=True) == {"tp": V}
    with spmd.set_current_mesh(MESH), spmd.typecheck(), pytest.raises(SpmdTypeError):
        FORGOTTEN[name]()


KEPT = {
    "a sum over a cut dim is owed": (lambda: given(S(0), 4, 2).sum(0), P),
    "a contraction over a cut dim is owed": (lambda: given(S(1), 3, 4) @ given(S(0), 4, 3), P),
    "no cut is known": (lambda: given(V, 3, 4) @ given(V, 4, 3), V),
    "pointwise": (lambda: given(S(0), 4).exp(), S(0)),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_cut_is_remembered_as_long_as_every_op_keeps_it(name):
    program, kind = KEPT[name]
    assert accepted(program, local=True) == {"tp": kind}


STATES = {
    Code.NOT_LINEAR: lambda: given(P, 4).exp(),
    Code.PARTIAL_PLUS: lambda: given(P, 4) + given(R, 4),
    Code.PARTIAL_PRODUCT: lambda: given(P, 4) * given(V, 4),
    Code.INVARIANT_MEETS: lambda: given(I, 4) * given(V, 4),
    Code.COUNTED: lambda: spmd.reinterpret(given(V, 3, 4) + given(R, 4), "tp", src=V, dst=P),
    Code.OTHER_TYPE: lambda: spmd.all_reduce(given(V, 4), "tp", src=P, dst=R),
    Code.LENGTH: lambda: given(R, 4) / given(S(0), 4).shape[0],
    Code.READ: lambda: given(V).item(),
}


@pytest.mark.parametrize("code", STATES)
def test_states_are_never_forgotten(code):
    refused(STATES[code], code, local=True)


def test_a_claim_of_a_sum_that_was_seen_changes_nothing():
    def program():
        y = given(S(1), 3, 4) @ given(S(0), 4, 3)
        return spmd.all_reduce(spmd.reinterpret(y, "tp", src=V, dst=P), "tp", src=P, dst=R)

    assert accepted(program, local=True) == {"tp": R}


def test_claims_are_listed():
    with spmd.set_current_mesh(MESH), spmd.typecheck(local=True) as report:
        spmd.reinterpret(given(V, 4), "tp", src=V, dst=P)
        spmd.assert_type(given(V, 4), {"tp": S(0)})
        with spmd.no_typecheck("a kernel of our own"):
            pass
    assert [claim.what for claim in report.claims] == ["V on axis 'tp' is P", "V on axis 'tp' is S(0)"]
    assert [each.reason for each in report.unchecked] == ["a kernel of our own"]
    assert "taken on trust" in str(report)


def test_a_region_ends_where_its_block_ends():
    with spmd.set_current_mesh(MESH), spmd.typecheck():
        with spmd.local():
            assert spmd.layout_of(given(S(0), 4).mean()) == {"tp": V}
        with pytest.raises(SpmdTypeError):
            given(S(0), 4).mean()


def test_a_region_does_nothing_where_nobody_checks():
    with spmd.local():
        assert torch.ones(2).sum() == 2


def expert(tokens, weight):
    return F.linear(tokens, weight)


def test_a_mapped_function_states_its_arguments_and_results():
    region = spmd.local_map(in_types=({"tp": S(0)}, {"tp": R}), out_types={"tp": S(0)}, in_grad_types=(None, {"tp": P}))
    assert accepted(lambda: region(expert)(given(S(0), 4, 3), given(R, 2, 3))) == {"tp": S(0)}
    problem = refused(lambda: region(expert)(given(S(1), 4, 3), given(R, 2, 3)), Code.REGION)
    assert "argument 0 of expert" in problem.where


def test_a_result_that_is_not_what_is_declared_is_refused():
    wrong = spmd.local_map(in_types=({"tp": S(0)},), out_types={"tp": R})
    problem = refused(lambda: wrong(torch.exp)(given(S(0), 4, wants=False)), Code.REGION)
    assert "S(0)" in problem.what
    assert "result 0" in problem.where


def test_what_every_rank_has_does_not_meet_what_differs_without_a_gradient_declared():
    bare = spmd.local_map(in_types=({"tp": R}, {"tp": S(0)}), out_types={"tp": S(1)})
    problem = refused(lambda: bare(expert)(given(R, 4, 3), given(S(0), 2, 3)), Code.REGION)
    assert "R meets S(0): the gradient is P" in problem.why
    wrong = spmd.local_map(
        in_types=({"tp": R}, {"tp": S(0)}), out_types={"tp": S(1)}, in_grad_types=({"tp": R}, {"tp": S(0)})
    )
    assert (
        "its gradient is declared R"
        in refused(lambda: wrong(expert)(given(R, 4, 3), given(S(0), 2, 3)), Code.REGION).what
    )
    right = spmd.local_map(
        in_types=({"tp": R}, {"tp": S(0)}), out_types={"tp": S(1)}, in_grad_types=({"tp": P}, {"tp": S(0)})
    )
    assert accepted(lambda: right(expert)(given(R, 4, 3), given(S(0), 2, 3))) == {"tp": S(1)}


def lengths(kind):
    return spmd.assert_type(torch.tensor([1, 3]), {"tp": kind})


def test_lengths_that_are_read_in_a_region_remember_that_they_differ():
    def program():
        n = lengths(V).tolist()
        rows = given(V, 4, 2)
        same = [rows.split(n)[0], rows[: n[0]], rows.narrow(0, 0, n[1]), rows.view(n[0], -1), given(R, 4) * n[0]]
        return {spmd.layout_of(each)["tp"] for each in same}

    assert accepted(program, local=True) == {V}
    assert accepted(lambda: torch.ones(4).repeat_interleave(torch.ones(4, dtype=torch.int64)).sum(), local=True) == {}
    assert accepted(lambda: given(R, 4)[: lengths(V).tolist()[0]], local=True) == {"tp": V}
    for use in (lambda n: given(R, 4).split(n), lambda n: given(R, 4).view(n[0], -1)):
        refused(lambda use=use: use(lengths(V).tolist()), Code.RANK, local=True)
    refused(lambda: lengths(V).tolist(), Code.READ)
    refused(lambda: given(V, 4).tolist(), Code.READ, local=True)


def test_an_answer_to_a_plain_length_is_none_to_one_that_differs():
    def program():
        x, n = given(R, 4, 2), lengths(V).tolist()
        assert spmd.layout_of(x[:1]) == {"tp": R}
        return x[: n[0]]

    assert accepted(program, local=True) == {"tp": V}


def test_counts_of_rows_that_a_rank_has_of_its_own_say_how_many_there_are():
    def counts():
        places = spmd.assert_type(torch.tensor([0, 1, 1, 1]), {"tp": S(0)})
        return torch.bincount(places, minlength=2)

    def copies():
        return torch.arange(2).repeat_interleave(counts(), output_size=4)

    assert accepted(counts) == {"tp": P}
    assert accepted(copies, local=True) == {"tp": V}
    refused(copies, Code.NOT_LINEAR)
    assert accepted(lambda: spmd.all_to_all(counts(), "tp", src=V, dst=V), local=True) == {"tp": V}
    refused(lambda: spmd.all_to_all(counts(), "tp", src=V, dst=V), Code.OTHER_TYPE)
    refused(lambda: 1 / counts(), Code.NOT_LINEAR, local=True)


def test_a_dim_that_nothing_cuts_is_one_whatever_it_was_made_of():
    assert accepted(lambda: spmd.convert(given(R, 3, 2, 2).flatten(0, 1), "tp", src=R, dst=S(0))) == {"tp": S(0)}
    flat = accepted(lambda: spmd.all_to_all(given(V, 1, 2, 2).flatten(0, 1), "tp", src=V, dst=V))
    assert flat == {"tp": V}


def test_a_flattened_dim_is_a_list_under_another_mesh():
    other = spmd.mesh(ep=4)
    with spmd.set_current_mesh(MESH), spmd.typecheck():
        rows = given(S(1), 2, 3, 4, dp=S(0)).flatten(0, 1)
        with spmd.set_current_mesh(other), spmd.local():
            assert spmd.layout_of(rows * 1) == {"ep": V}
        with spmd.set_current_mesh(other), pytest.raises(SpmdTypeError, match="unflatten the dim"):
            rows * 1

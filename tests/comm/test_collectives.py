"""The public calls: the types fix the step, and a call that names another one is refused with one that works."""

from __future__ import annotations

import pytest
import torch

from meshwright.comm import collectives
from meshwright.comm.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    convert,
    redistribute,
    reduce_scatter,
    reinterpret,
)
from meshwright.comm.declare import assert_type
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.threads import run_ranks
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, V
from tests.denotation import denoted, local, sample

TWO = ParallelismDims(tp=2)
WHOLE = sample((4, 6), seed=3)

CALLS = [
    (all_gather, S(0), R),
    (all_gather, S(1), I),
    (all_gather, V, R),
    (all_reduce, P, R),
    (all_reduce, P, I),
    (reduce_scatter, P, S(1)),
    (all_to_all, S(0), S(1)),
    (convert, R, S(0)),
    (convert, I, R),
    (convert, S(1), P),
    (convert, R, P),
]


def on_two_ranks(src, call):
    """`call` on the two parts of `WHOLE`, which is a list of two where `src` is V."""
    whole = WHOLE[:2] if src is V else WHOLE
    return run_ranks(TWO, lambda rank: call(local({"tp": src}, whole, TWO, rank))), whole


@pytest.mark.parametrize(("call", "src", "dst"), CALLS)
def test_a_call_keeps_what_the_tensor_denotes(call, src, dst):
    parts, whole = on_two_ranks(src, lambda x: call(x, "tp", src=src, dst=dst))
    assert torch.equal(denoted({"tp": dst}, parts, TWO), whole)


@pytest.mark.parametrize(("call", "src", "dst"), CALLS)
def test_redistribute_finds_the_step_of_each_call(call, src, dst):
    named, _ = on_two_ranks(src, lambda x: call(x, "tp", src=src, dst=dst))
    found, _ = on_two_ranks(src, lambda x: redistribute(x, "tp", src=src, dst=dst))
    assert all(torch.equal(a, b) for a, b in zip(named, found, strict=True))


def refusal(call, src, **arguments):
    with pytest.raises(SpmdTypeError, match="axis 'tp'") as error:
        on_two_ranks(src, lambda x: call(x, "tp", src=src, **arguments))
    (problem,) = error.value.problems
    return problem


def pasted(fix, x):
    """What the suggested call returns."""
    return eval(fix, {**vars(collectives), "R": R, "I": I, "V": V, "P": P, "S": S, "x": x})


@pytest.mark.parametrize(
    ("call", "src", "dst", "fix"),
    [
        (all_reduce, S(0), R, "all_gather(x, 'tp', src=S(0), dst=R)"),
        (all_reduce, S(1), I, "all_gather(x, 'tp', src=S(1), dst=I)"),
        (all_reduce, P, S(0), "reduce_scatter(x, 'tp', src=P, dst=S(0))"),
        (reduce_scatter, P, R, "all_reduce(x, 'tp', src=P, dst=R)"),
        (reduce_scatter, S(1), S(0), "all_to_all(x, 'tp', src=S(1), dst=S(0))"),
        (reduce_scatter, R, S(0), "convert(x, 'tp', src=R, dst=S(0))"),
        (all_gather, P, R, "all_reduce(x, 'tp', src=P, dst=R)"),
        (all_gather, I, R, "convert(x, 'tp', src=I, dst=R)"),
        (all_to_all, S(0), R, "all_gather(x, 'tp', src=S(0), dst=R)"),
        (convert, S(0), R, "all_gather(x, 'tp', src=S(0), dst=R)"),
        (convert, P, I, "all_reduce(x, 'tp', src=P, dst=I)"),
    ],
)
def test_a_call_that_is_not_the_step_between_its_types_names_the_right_one(call, src, dst, fix):
    problem = refusal(call, src, dst=dst)
    assert f"{src!r} -> {dst!r} is no" in problem.what
    assert problem.fix == fix
    parts, whole = on_two_ranks(src, lambda x: pasted(problem.fix, x))
    assert torch.equal(denoted({"tp": dst}, parts, TWO), whole)


@pytest.mark.parametrize(("call", "dst"), [(all_reduce, R), (all_reduce, I), (reduce_scatter, S(0))])
def test_a_list_is_summed_where_that_is_said(call, dst):
    problem = refusal(call, V, dst=dst)
    assert problem.fix == f"{call.__name__}(reinterpret(x, 'tp', src=V, dst=P), 'tp', src=P, dst={dst!r})"
    parts, whole = on_two_ranks(V, lambda x: pasted(problem.fix, x))
    assert torch.equal(denoted({"tp": dst}, parts, TWO), whole.sum(0))


@pytest.mark.parametrize("src", [R, I])
@pytest.mark.parametrize("dst", [R, I])
def test_what_every_rank_holds_already_is_not_reduced(src, dst):
    problem = refusal(all_reduce, src, dst=dst)
    assert f"x is {src!r}" in problem.what
    assert "leave the call out" in problem.fix


@pytest.mark.parametrize(
    ("call", "kind"), [(all_gather, R), (reduce_scatter, P), (all_reduce, P), (all_to_all, S(0)), (all_gather, S(1))]
)
def test_a_named_collective_that_changes_nothing_is_a_mistake(call, kind):
    assert refusal(call, kind, dst=kind).fix == "leave the call out"


@pytest.mark.parametrize("kind", [R, I, V, P, S(0)])
@pytest.mark.parametrize("call", [redistribute, convert, reinterpret])
def test_no_change_returns_the_tensor_itself(call, kind):
    x = torch.ones(2)
    assert run_ranks(TWO, lambda rank: call(x, "tp", src=kind, dst=kind) is x) == [True, True]


def test_steps_for_experts_are_taken_only_on_request():
    assert "expert_mode=True" in refusal(redistribute, R, dst=I).fix
    for call in (redistribute, convert):
        parts, whole = on_two_ranks(R, lambda x, call=call: call(x, "tp", src=R, dst=I, expert_mode=True))
        assert torch.equal(denoted({"tp": I}, parts, TWO), whole)


@pytest.mark.parametrize(("src", "dst"), [(V, P), (R, V)])
def test_a_claim_keeps_the_local_value(src, dst):
    x = torch.ones(2)
    assert all(torch.equal(y, x) for y in run_ranks(TWO, lambda rank: reinterpret(x, "tp", src=src, dst=dst)))


def test_what_cannot_be_claimed_can_be_redistributed():
    problem = refusal(reinterpret, S(0), dst=R)
    assert problem.fix == "redistribute(x, 'tp', src=S(0), dst=R)"
    parts, whole = on_two_ranks(S(0), lambda x: pasted(problem.fix, x))
    assert torch.equal(denoted({"tp": R}, parts, TWO), whole)


ODD = sample((5, 3), seed=4)


@pytest.mark.parametrize(("src", "dst"), [(R, S(0)), (I, S(1)), (P, S(0)), (P, S(1)), (S(1, (2, 1)), S(0))])
def test_an_uneven_dim_is_refused_with_the_sizes_that_work(src, dst):
    def parts(to):
        return run_ranks(TWO, lambda rank: redistribute(local({"tp": src}, ODD, TWO, rank), "tp", src=src, dst=to))

    with pytest.raises(SpmdTypeError, match="does not split evenly over 2 ranks") as error:
        parts(dst)
    sized = eval(error.value.problems[0].fix, {"S": S})
    assert torch.equal(denoted({"tp": sized}, parts(sized), TWO), ODD)


def test_five_rows_over_two_ranks_make_the_exact_round_trip():
    def round_trip(rank):
        shard = convert(ODD, "tp", src=R, dst=S(0, (3, 2)))
        return len(shard), all_gather(shard, "tp", src=S(0, (3, 2)), dst=R)

    (first, whole), (second, again) = run_ranks(TWO, round_trip)
    assert (first, second) == (3, 2)
    assert torch.equal(whole, ODD)
    assert torch.equal(again, ODD)


def test_sizes_that_do_not_add_up_are_refused_with_some_that_do():
    with pytest.raises(SpmdTypeError, match=r"sizes \(2, 2\) add up to 4, not to dim 0 of \(5, 3\)") as error:
        run_ranks(TWO, lambda rank: convert(ODD, "tp", src=R, dst=S(0, (2, 2))))
    assert eval(error.value.problems[0].fix, {"S": S}) is S(0, (3, 2))


@pytest.mark.parametrize("dst", [R, P, S(1, (2, 1))])
def test_a_rank_that_does_not_hold_what_the_layout_states_is_told(dst):
    with pytest.raises(SpmdTypeError, match=r"holds \d of dim 0, not 4"):
        run_ranks(TWO, lambda rank: redistribute(torch.ones(4, 3), "tp", src=S(0, (3, 2)), dst=dst))


@pytest.mark.parametrize("dst", [V])
@pytest.mark.parametrize("shape", [(), (3, 2)])
def test_a_list_has_one_entry_for_each_rank(dst, shape):
    with pytest.raises(SpmdTypeError, match="one entry for each of 2 ranks"):
        run_ranks(TWO, lambda rank: convert(torch.ones(shape), "tp", src=R, dst=dst))


def test_a_stated_type_costs_nothing_where_nobody_checks():
    x = torch.ones(2)
    assert assert_type(x, {"no such axis": R}) is x

"""The table of steps: closed under backward, and clear where there is no step."""

import itertools

import pytest
from hypothesis import given

from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, V
from meshwright.types.transition import CHANGES, EXPERT, Op, Step, claim, step
from tests.sampling import kinds

KIND = {"R": R, "I": I, "V": V, "P": P, "S": S(0)}
TABLE = {
    "S R": (Op.ALL_GATHER, Op.REDUCE_SCATTER),
    "V R": (Op.ALL_GATHER, Op.REDUCE_SCATTER),
    "S I": (Op.ALL_GATHER, Op.SLICE),
    "V I": (Op.ALL_GATHER, Op.SLICE),
    "P S": (Op.REDUCE_SCATTER, Op.ALL_GATHER),
    "P V": (Op.REDUCE_SCATTER, Op.ALL_GATHER),
    "S S": (Op.ALL_TO_ALL, Op.ALL_TO_ALL),
    "R S": (Op.SLICE, Op.PAD),
    "R V": (Op.SLICE, Op.PAD),
    "R I": (Op.RETAG, Op.MASK),
    "P R": (Op.ALL_REDUCE, Op.ALL_REDUCE),
    "P I": (Op.ALL_REDUCE, Op.RETAG),
    "I R": (Op.RETAG, Op.ALL_REDUCE),
    "I S": (Op.SLICE, Op.ALL_GATHER),
    "I V": (Op.SLICE, Op.ALL_GATHER),
    "I P": (Op.MASK, Op.RETAG),
    "R P": (Op.MASK, Op.MASK),
    "S P": (Op.PAD, Op.SLICE),
    "V P": (Op.PAD, Op.SLICE),
}
"""(source, destination) -> forward and backward, as the design states them."""


def _step(key: str) -> Step:
    src, dst = KIND[key[0]], S(1) if key == "S S" else KIND[key[-1]]
    found = step("tp", src, dst, expert_mode=True)
    assert found is not None
    return found


def test_these_are_all_the_steps():
    assert set(CHANGES) == set(TABLE)


@pytest.mark.parametrize("key", TABLE)
def test_each_step_and_its_backward(key):
    assert (_step(key).op, _step(key).backward.op) == TABLE[key]


@pytest.mark.parametrize("key", TABLE)
def test_the_backward_goes_from_dual_to_dual_by_a_step_of_the_table(key):
    forward, backward = _step(key), _step(key).backward
    assert (backward.axis, backward.src, backward.dst) == ("tp", forward.dst.dual, forward.src.dual)
    assert CHANGES[f"{backward.src.letter} {backward.dst.letter}"] is backward.op


@pytest.mark.parametrize("key", TABLE)
def test_the_backward_of_the_backward_is_the_step(key):
    assert _step(key).backward.backward == _step(key)


@pytest.mark.parametrize(("src", "dst"), [(V, P), (R, V)])
def test_a_claim_keeps_the_value_forward_and_backward(src, dst):
    (forward,) = claim("tp", src, dst)
    assert forward.is_claim
    assert forward.backward.is_claim
    assert (forward.op, forward.backward.op) == (Op.RETAG, Op.RETAG)
    assert (forward.backward.src, forward.backward.dst) == (dst.dual, src.dual)
    assert forward.backward.backward == forward


@pytest.mark.parametrize("key", TABLE)
def test_a_step_that_keeps_the_denoted_value_is_no_claim(key):
    assert not _step(key).is_claim


@given(kind=kinds())
def test_from_a_type_to_itself_there_is_nothing_to_do(kind):
    assert step("tp", kind, kind) is None
    assert claim("tp", kind, kind) == ()


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        (KIND[a], KIND[b])
        for a, b in itertools.permutations("RIVPS", 2)
        if f"{a} {b}" not in CHANGES and f"{a} {b}" != "V S"
    ],
)
def test_where_there_is_no_step_the_error_names_the_types_that_can_be_reached(src, dst):
    with pytest.raises(SpmdTypeError) as error:
        step("tp", src, dst, expert_mode=True)
    (problem,) = error.value.problems
    assert "'tp'" in problem.where
    assert f"{src!r} -> {dst!r}" in problem.what
    named = problem.fix.partition(": ")[2].split(", ")
    assert named
    for name in named:
        assert step("tp", src, S(1) if name == "S(i)" else KIND[name]) is not None


def test_which_dim_a_list_cuts_is_stated_and_not_a_step():
    with pytest.raises(SpmdTypeError) as error:
        step("tp", KIND["V"], S(1))
    assert error.value.problems[0].fix == "assert_type(x, {'tp': S(1)})"


@pytest.mark.parametrize("key", EXPERT)
def test_a_step_for_experts_says_how_to_state_that_one_is_meant(key):
    src, dst = KIND[key[0]], KIND[key[-1]]
    with pytest.raises(SpmdTypeError, match=r"for experts only[\s\S]*expert_mode=True"):
        step("tp", src, dst)
    assert step("tp", src, dst, expert_mode=True) == Step(("tp",), src, dst, CHANGES[key])


def test_one_dim_is_not_cut_anew_without_becoming_whole():
    with pytest.raises(SpmdTypeError, match=r"S\(0\) -> R, then R -> S\(0, \(3, 1\)\)"):
        step("tp", S(0), S(0, (3, 1)))


CLAIMED = {"V P": "V P", "R V": "R V", "R P": "R V P", "I R": "I R", "I V": "I R V", "I P": "I R V P"}
"""(source, destination) -> the types that a reinterpretation goes through."""


@pytest.mark.parametrize("key", CLAIMED)
def test_a_reinterpretation_is_made_of_steps_that_keep_the_local_value(key):
    steps = claim("tp", KIND[key[0]], KIND[key[-1]])
    assert " ".join([steps[0].src.letter, *(step.dst.letter for step in steps)]) == CLAIMED[key]
    assert {step.op for step in steps} == {Op.RETAG}


@pytest.mark.parametrize(
    ("src", "dst"),
    [(KIND[a], KIND[b]) for a, b in itertools.permutations("RIVPS", 2) if f"{a} {b}" not in (*CLAIMED, *EXPERT)],
)
def test_no_other_pair_can_be_claimed(src, dst):
    with pytest.raises(SpmdTypeError, match="axis 'tp'") as error:
        claim("tp", src, dst)
    (problem,) = error.value.problems
    expected = f"redistribute(x, 'tp', src={src!r}, dst={dst!r})" if f"{src.letter} {dst.letter}" in CHANGES else ""
    assert problem.fix == expected


def test_to_read_r_as_i_is_for_experts():
    with pytest.raises(SpmdTypeError, match="for experts only"):
        claim("tp", R, I)
    assert [step.op for step in claim("tp", R, I, expert_mode=True)] == [Op.RETAG]


def test_what_communicates():
    assert {op for op in Op if op.communicates} == {Op.ALL_GATHER, Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.ALL_TO_ALL}


def test_a_step_prints_what_it_does():
    assert str(_step("P R")) == "tp: P -> R all_reduce"

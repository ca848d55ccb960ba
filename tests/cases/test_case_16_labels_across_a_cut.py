"""Labels are shifted before the sequence is cut over cp: the last label of a part is the first token of the next."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.shapes import shape_view
from meshwright.errors import SpmdTypeError
from meshwright.train.data import Batch
from meshwright.train.data.packing import IGNORE
from meshwright.train.step import own_part
from tests.cases.agreement import alternatives, pasted
from tests.cases.backends import everywhere
from tests.check.judged import judged, on, refusal, says
from tests.denotation import local, sample
from tests.parity.harness import assert_same, global_batch, one_device, small
from tests.parity.processes import on_processes

CP2 = ParallelismDims(cp=2)


def parts_of(length):
    """Of one row of 0, 1, 2 ... what each of two ranks has."""
    tokens = torch.arange(length).unsqueeze(0)
    labels = torch.cat((tokens[:, 1:], torch.tensor([[IGNORE]])), 1)
    whole = Batch(tokens=tokens, labels=labels, positions=tokens, documents=torch.zeros_like(tokens))
    return [own_part(whole, shape_view(CP2, rank)["cp"]) for rank in (0, 1)]


def test_the_last_label_of_the_first_part_is_the_first_token_of_the_second():
    """10 tokens are cut in the middle: they make no two pieces for each rank."""
    first, second = parts_of(10)
    assert first.labels[0, -1] == second.tokens[0, 0] == 5
    assert second.labels.tolist() == [[6, 7, 8, 9, IGNORE]]
    assert second.positions.tolist() == [[5, 6, 7, 8, 9]]


def test_so_it_is_at_every_cut_where_a_rank_has_a_piece_of_the_head_and_one_of_the_tail():
    first, second = parts_of(8)
    assert first.tokens.tolist() == [[0, 1, 6, 7]]
    assert second.tokens.tolist() == [[2, 3, 4, 5]]
    assert first.labels.tolist() == [[1, 2, 7, IGNORE]]
    assert second.labels.tolist() == [[3, 4, 5, 6]]


def test_a_roll_of_the_part_is_refused():
    tokens = torch.arange(4).unsqueeze(0)
    with spmd.set_current_mesh(shape_view(CP2, 0)), spmd.typecheck():
        spmd.assert_type(tokens, {"cp": spmd.S(1)})
        with pytest.raises(SpmdTypeError) as error:
            tokens.roll(-1, 1)
    (problem,) = error.value.problems
    assert "'cp'" in problem.what
    assert "S(1)" in problem.what


ROLLS = {
    "roll": lambda input, shift, dim: input.roll(shift, dim),
    "by name": lambda input, shift, dim: torch.roll(input, shifts=shift, dims=(dim,)),
    "of all dims": lambda input, shift, dim: input.roll(shift),
    "of torch.ops": lambda input, shift, dim: torch.ops.aten.roll(input, [shift], [dim]),
}


@settings(max_examples=20)
@given(
    roll=st.sampled_from(sorted(ROLLS)),
    axis=st.sampled_from(["cp", "dp", "tp"]),
    degree=st.sampled_from([2, 3]),
    rows=st.integers(1, 2),
    each=st.integers(1, 4),
    shift=st.integers(-2, 2).filter(bool),
    negative=st.booleans(),
)
def test_a_shift_of_any_part_is_refused_and_right_behind_the_gather(roll, axis, degree, rows, each, shift, negative):
    dims, whole, dim = on(axis, degree), sample((rows, each * degree), seed=1), -1 if negative else 1

    def program(rank, calls=()):
        input = spmd.assert_type(local({axis: spmd.S(1)}, whole, dims, rank), {axis: spmd.S(1)})
        for call in calls:
            input = pasted(call, {"input": input})["input"]
        return ROLLS[roll](input, shift, dim)

    problem = refusal(program, dims)
    says(problem, axis, "S(1)", "roll the whole before it is cut")
    (calls,) = alternatives(problem.fix)
    for found in judged(lambda rank: program(rank, calls), dims):
        assert torch.equal(found, ROLLS[roll](whole, shift, dim))


@settings(max_examples=20)
@given(cp=st.sampled_from([1, 2, 4]), length=st.sampled_from([4, 8, 12, 16]), rows=st.integers(1, 2))
def test_in_training_each_rank_has_the_label_of_the_whole_sequence(cp, length, rows):
    """Whatever positions a rank has: the label of one is the token of the next, which another rank may have."""
    tokens = 10 + torch.arange(rows * length).reshape(rows, length)
    positions = torch.arange(length).expand(rows, length)
    whole = Batch(tokens, tokens + 1, positions, torch.zeros_like(tokens))
    dims = ParallelismDims(cp=cp)
    parts = [own_part(whole, shape_view(dims, rank)["cp"]) for rank in range(cp)]
    assert sorted(torch.cat([part.positions[0] for part in parts]).tolist()) == list(range(length))
    for part in parts:
        assert torch.equal(part.labels, part.tokens + 1)


def test_through_a_pipeline_with_the_sequence_cut_the_step_is_that_of_one_device():
    """A shift of each part would give other labels at every cut."""
    config = small()
    whole = global_batch(config)
    batches = [Batch(whole.tokens, whole.tokens.roll(-1, 1), whole.positions, whole.documents)]
    alone = one_device(config, batches)
    for outcome in on_processes(everywhere(config, [{"cp": 2, "pp": 2}]), batches, 4):
        assert_same(outcome, alone)

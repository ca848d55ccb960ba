"""Labels are shifted before the sequence is cut over cp: the last label of a part is the first token of the next."""

from __future__ import annotations

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.shapes import shape_view
from meshwright.errors import SpmdTypeError
from meshwright.train.data import Batch
from meshwright.train.data.packing import IGNORE
from meshwright.train.step import own_part

CP2 = ParallelismDims(cp=2)


def test_the_last_label_of_the_first_part_is_the_first_token_of_the_second():
    tokens = torch.arange(8).unsqueeze(0)
    labels = torch.tensor([[1, 2, 3, 4, 5, 6, 7, IGNORE]])
    whole = Batch(tokens=tokens, labels=labels, positions=tokens, documents=torch.zeros_like(tokens))
    first, second = (own_part(whole, shape_view(CP2, rank)["cp"]) for rank in (0, 1))
    assert first.labels[0, -1] == second.tokens[0, 0] == 4
    assert second.labels.tolist() == [[5, 6, 7, IGNORE]]
    assert second.positions.tolist() == [[4, 5, 6, 7]]


def test_a_roll_of_the_part_is_refused():
    tokens = torch.arange(4).unsqueeze(0)
    with spmd.set_current_mesh(shape_view(CP2, 0)), spmd.typecheck():
        spmd.assert_type(tokens, {"cp": spmd.S(1)})
        with pytest.raises(SpmdTypeError) as error:
            tokens.roll(-1, 1)
    (problem,) = error.value.problems
    assert "'cp'" in problem.what
    assert "S(1)" in problem.what

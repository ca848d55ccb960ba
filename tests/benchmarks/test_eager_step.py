"""With the types erased, a step is the ops that a careful engineer writes by hand, one by one."""

from __future__ import annotations

import pytest

from benchmarks.eager_step import fake_world, op_list, steps


@pytest.fixture(scope="module")
def _world():
    with fake_world():
        yield


@pytest.mark.usefixtures("_world")
@pytest.mark.parametrize("rows", [1, 2])
def test_the_declared_step_has_the_op_list_of_the_handwritten_one(rows):
    declared, by_hand = (op_list(step) for step in steps(rows))
    assert len(declared) > 1000
    assert sum("c10d" in op for op in declared) > 50
    for i, (mine, theirs) in enumerate(zip(declared, by_hand, strict=True)):
        assert mine == theirs, f"op {i} after {declared[max(0, i - 3) : i]}"

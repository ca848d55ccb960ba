"""`meshwright parity` of a recipe with experts: what is wrong with their gradients is named, with its law."""

from __future__ import annotations

import pytest

from tests.parity.planted_experts import planted
from tests.parity.test_command import found

PLANTED = [
    ("not_summed_over_efsdp", "dp_shard=4,ep=2", "w1", "one rank's part only: the sum over dp_shard is missing", None),
    ("times_ep", "dp_shard=2,ep=2", "w3", "x dp_shard", 2.0),
    ("divided_by_ep", "dp_shard=2,ep=2", "w3", "/ dp_shard", 0.5),
]
"""ep takes ranks of another axis, by whose name the law goes."""


@pytest.mark.parametrize(("fault", "layout", "weight", "law", "ratio"), PLANTED)
def test_a_planted_fault_is_named_with_its_law(fault, layout, weight, law, ratio, tmp_path, capsys):
    code, shown = found(capsys, planted(tmp_path, fault), "--fast", "--layout", layout)
    assert (code, shown["verdict"]) == (1, "wrong")
    (cell,) = shown["cells"]
    off = cell["off"][-1]
    assert (off["kind"], off["name"]) == ("grads", f"blocks.1.feed_forward.routed.experts.{weight}")
    assert cell["law"] == law
    assert cell["ratio"] == (None if ratio is None else pytest.approx(ratio, rel=1e-4))


def test_the_copied_recipe_without_a_fault_is_right(tmp_path, capsys):
    code, shown = found(capsys, planted(tmp_path, "none"), "--fast", "--layout", "dp_shard=2,tp=2,ep=4")
    assert (code, shown["verdict"]) == (0, "right")

"""Layouts are printed alike, whatever was made before them."""

import itertools
import subprocess
import sys

import pytest

from meshwright.types.kinds import I, P, R, S
from meshwright.types.layout import SpmdLayout

SHOWN = {
    "{dp:R, cp:I, tp:P}": {"dp": R, "cp": I, "tp": P},
    "{ep:R, first:I, second:P}": {"second": P, "first": I, "ep": R},
    "{pp:R, tp:S(1), cp:I, dp:S(1)}": {"pp": R, "tp": S(1), "dp": S(1), "cp": I},
}
"""Text -> the layout; where two axes shard one dim, the outermost stands first."""


@pytest.mark.parametrize("text", SHOWN)
def test_the_axes_of_a_layout_stand_in_the_usual_order(text):
    types = SHOWN[text]
    sharded = [axis for axis in types if types[axis] is S(1)]
    for axes in itertools.permutations(types):
        if [axis for axis in axes if axis in sharded] == sharded:
            assert repr(SpmdLayout({axis: types[axis] for axis in axes})) == text


def test_what_was_made_first_does_not_matter():
    program = """
from meshwright.spmd import I, R
from meshwright.types.layout import SpmdLayout
SpmdLayout({"tp": I, "dp": R})
print(SpmdLayout({"dp": R, "tp": I}))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "{dp:R, tp:I}\n"

"""The published sizes are known by their names."""

from __future__ import annotations

import pytest

from meshwright import recipes
from meshwright.errors import ConfigError
from meshwright.models.deepseek_v3 import deepseek_v3
from meshwright.models.llama3 import SIZES, llama3
from meshwright.models.qwen3 import qwen3
from meshwright.models.qwen3_moe import qwen3_moe


@pytest.mark.parametrize(
    ("family", "largest"),
    [(llama3, "405b"), (qwen3, "32b"), (qwen3_moe, "235b-a22b"), (deepseek_v3, "671b")],
)
def test_a_name_that_is_none_is_told_with_the_nearest_and_all(family, largest):
    with pytest.raises(ConfigError) as error:
        family("debugg")
    (problem,) = error.value.problems
    assert problem.where == f"{family.__name__}('debugg')"
    assert problem.what == "no such size, did you mean 'debug'?"
    assert repr(largest) in problem.fix


def test_a_recipe_says_it_at_its_line(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from meshwright.models.llama3 import llama3\n\nconfig = llama3('debugg')\n")
    with pytest.raises(ConfigError, match=rf"mine\.py:3: llama3\('debugg'\): no such size(.|\n)*{SIZES[-1]}"):
        recipes.find(str(file))

"""Why no step is tried in a layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.errors import ConfigError, Problem
from meshwright.parity import refusals
from meshwright.parity.cell import Verdict
from meshwright.parity.refusals import demand_one_device, refusal
from meshwright.train.config import ComputeConfig
from tests.parity.harness import laid_out, small


def test_a_vocabulary_that_ranks_do_not_divide_is_no_fault_of_the_recipe():
    verdict, problems = refusal(laid_out(small(vocab=66), tp=4))
    assert verdict is Verdict.NONE
    assert all(problem.uneven for problem in problems)
    assert refusal(laid_out(small(vocab=66), tp=2)) is None


def test_words_decide_nothing(monkeypatch):
    def refuses(config, world):
        raise ConfigError(Problem(where="model", what="forward fails on shapes alone: 7 does not divide over 2"))

    monkeypatch.setattr(refusals, "preflight", refuses)
    assert refusal(laid_out(small(), tp=2))[0] is Verdict.REFUSED


def test_numbers_of_no_run_are_told_whatever_the_layout():
    config = laid_out(replace(small(), compute=ComputeConfig(reshard="always")), tp=3)
    demand_one_device(config)
    with pytest.raises(ConfigError, match=r"compute\.loss_chunks: 16 tokens .* do not divide into 3 chunks"):
        demand_one_device(replace(config, compute=replace(config.compute, loss_chunks=3)))

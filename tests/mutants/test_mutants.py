"""Right programs are accepted and agree with one device; a fault that is planted in one is reported."""

from __future__ import annotations

import ast

import pytest
import torch

from tests.mutants.escapes import REASONS, REFUSED, reason
from tests.mutants.operators import OPERATORS
from tests.mutants.program import Program
from tests.mutants.programs import PROGRAMS
from tests.mutants.rewrite import rewritten
from tests.mutants.run import Mutant, expected, judged, mutants, outcome
from tests.mutants.tally import LEAST_CHANGING, LEAST_NAMED, Tally
from tests.mutants.truth import Truth, truth


@pytest.fixture(autouse=True)
def one_core():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_program_agrees_with_one_device(name):
    program = PROGRAMS[name]
    assert truth(program, program.run, expected(name), own_meaning=False) == (Truth.EQUIVALENT, "")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_program_is_accepted(name):
    said, broke = judged(PROGRAMS[name], PROGRAMS[name].run)
    assert not broke
    assert bool(said) == (name in REFUSED), said


def accepted() -> list[Program]:
    return [program for name, program in PROGRAMS.items() if name not in REFUSED]


def sample() -> list[Mutant]:
    """Every so many of all."""
    return [mutant for program in accepted() for mutant in mutants(program.name)][::14]


def test_a_sample_of_faults_is_reported_under_the_right_axis():
    outcomes = [outcome(mutant) for mutant in sample()]
    tally = Tally(tuple(outcomes))
    assert len(tally.changing) >= 60
    assert [str(one.mutant) for one in tally.escaped if reason(one) is None] == []
    assert len(tally.named) >= LEAST_NAMED * len(tally.about_an_axis)


def test_each_kind_of_fault_finds_a_place_and_no_source_is_planted_twice():
    planted = [mutant for program in accepted() for mutant in mutants(program.name)]
    assert {mutant.operator for mutant in planted} == set(OPERATORS)
    for program in accepted():
        found = [edit for find in OPERATORS.values() for edit in find(program)]
        every = {ast.unparse(rewritten(program.tree, edit.new)) for edit in found} - {ast.unparse(program.tree)}
        assert sorted(ast.unparse(one.tree) for one in mutants(program.name)) == sorted(every)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_faults_are_reported_but_those_of_which_it_is_said_why_not():
    outcomes = tuple(outcome(mutant) for program in accepted() for mutant in mutants(program.name))
    tally = Tally(outcomes)
    assert len(tally.changing) >= LEAST_CHANGING * len(tally.all)
    assert [str(one.mutant) for one in tally.escaped if reason(one) is None] == []
    assert {one.mutant.operator for one in tally.escaped if not one.broke} == set(REASONS)
    assert len(tally.named) >= LEAST_NAMED * len(tally.about_an_axis)

"""Every rule is held against one device; none is without a sample."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.overrides import TorchFunctionMode

from meshwright.check import assert_type, layout_of, no_typecheck
from meshwright.check.rule import RULES, Pure
from meshwright.types.kinds import I, P, R, S
from meshwright.types.layout import SpmdLayout
from tests.oracle.drawn import LINE
from tests.oracle.judge import Case, Lie, Verdict, judged
from tests.oracle.needless import MOST, NEEDLESS
from tests.oracle.run import FULL, QUICK, Effort, Tally, proven
from tests.oracle.sample import sample
from tests.oracle.samples import UNSAMPLED, base, by_op, ruled
from tests.oracle.support import PAGE, page

OPS = sorted(by_op())


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


def of(ops, effort: Effort) -> Tally:
    return proven([each for op in ops for each in by_op()[op]], effort)


def demand_honest(tally: Tally) -> None:
    assert not tally.lies
    assert not [case for case in tally.needless if case.split()[0] not in NEEDLESS]
    assert tally.accepted > 0


def test_every_op_with_a_rule_has_a_sample():
    assert ruled() - set(OPS) == set(UNSAMPLED)
    assert set(OPS) <= ruled()


class Calls(TorchFunctionMode):
    """Notes which functions are called, by their own names and by those of their rules."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        own, rule = getattr(func, "__name__", ""), RULES.get(func)
        self.names |= {own.strip("_"), own.partition(".")[0]} | ({base(rule.name)} if isinstance(rule, Pure) else set())
        return func(*args, **(kwargs or {}))


CALLED_BY = {"im2col": "unfold", "linalg_cross": "cross"}
"""Ops that are called by another name: the one inside that function, the other of the same rule."""


@pytest.mark.parametrize("op", OPS)
def test_a_sample_calls_the_op_that_it_is_of(op):
    for each in by_op()[op]:
        operands = [operand.whole(3) for operand in each.inputs]
        with Calls() as calls:
            each.run(*operands)
        assert {op, op.strip("_"), CALLED_BY.get(op)} & calls.names, f"{each} calls {', '.join(sorted(calls.names))}"


@pytest.mark.parametrize("start", range(0, len(OPS), 40))
def test_what_is_accepted_is_what_one_device_computes(start):
    demand_honest(of(OPS[start : start + 40], QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_all_draws_of_one_op(op):
    demand_honest(of([op], FULL))


@pytest.mark.slow
def test_few_refusals_are_needless():
    tally = of(OPS, FULL)
    assert len(tally.needless) <= MOST * tally.draws
    assert {case.split()[0] for case in tally.needless} == set(NEEDLESS)


def test_the_support_page_says_what_the_registers_say():
    assert PAGE.read_text() == page()


def on_line(each, *kinds, wants=True) -> Case:
    return Case(each, tuple(SpmdLayout({"tp": kind}) for kind in kinds), (wants,) * len(kinds), LINE)


class TestTheOracleItself:
    """It finds a rule that lies, and one that is too strict."""

    def test_a_right_rule(self):
        assert judged(on_line(sample("add", torch.add, (4,), (4,)), S(0), S(0))) is Verdict.ACCEPTED

    def test_a_refusal_that_is_needed(self):
        assert judged(on_line(sample("exp", torch.exp, (4,)), P)) is Verdict.REFUSED

    def test_a_refusal_of_gradients_that_is_needed(self):
        assert judged(on_line(sample("mul", torch.mul, (4,), (4,)), I, R)) is Verdict.REFUSED

    def test_a_refusal_that_is_not(self):
        zeros = sample("expm1", lambda x: torch.expm1(x * 0), (4,))
        assert judged(on_line(zeros, P, wants=False)) is Verdict.NEEDLESS

    def test_a_type_that_is_not_what_was_computed(self):
        def claimed(x):
            with no_typecheck():
                y = torch.exp(x)
            return assert_type(y, {"tp": P})

        with pytest.raises(Lie, match="result 0 is not"):
            judged(on_line(sample("exp", claimed, (4,)), P))

    def test_a_gradient_that_is_not_the_dual(self):
        def claimed(x):
            with no_typecheck():
                y = x * 1
            return assert_type(y, {"tp": I})

        with pytest.raises(Lie, match="the gradient of operand 0"):
            judged(on_line(sample("mul", claimed, (4,)), R))

    def test_an_error_of_another_class(self):
        def odd(x):
            if layout_of(x):
                raise ValueError("not a type error")
            return x * 1

        with pytest.raises(Lie, match="ValueError"):
            judged(on_line(sample("mul", odd, (4,)), R))

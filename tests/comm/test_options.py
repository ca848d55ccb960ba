"""Dtypes on the wire, forward and backward."""

from __future__ import annotations

import pytest
import torch

from meshwright.comm.collectives import all_gather, all_reduce, convert, redistribute, reduce_scatter
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import axis
from meshwright.comm.threads import run_ranks
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S

TWO = ParallelismDims(tp=2)
FINE = 1 + 2**-10
"""Held by float32, and not by bfloat16."""
FULL = {"op_dtype": torch.float32}
HALF = torch.bfloat16


class Wire:
    """What went over the wire of an axis: (collective, dtype)."""

    def __init__(self, group):
        self.seen = []
        for name in ("all_reduce", "all_gather", "reduce_scatter"):
            setattr(group, name, self._listening(name, getattr(group, name)))

    def _listening(self, name, method):
        def heard(x, *args):
            self.seen.append((name, x.dtype))
            return method(x, *args)

        return heard


def on_the_wire(call, x):
    """What went over the wire, the dtypes of the result and of the gradient, and both, as rank 0 sees them."""

    def program(rank):
        wire = Wire(axis("tp"))
        leaf = x.clone().requires_grad_()
        y = call(leaf)
        (gradient,) = torch.autograd.grad(y, leaf, torch.full(y.shape, FINE, dtype=y.dtype))
        return wire.seen, y.detach(), gradient

    return run_ranks(TWO, program)[0]


def test_parameters_are_gathered_in_low_precision_and_their_gradients_summed_in_full():
    def gather(x):
        return all_gather(x, "tp", src=S(0), dst=R, op_dtype=HALF, backward_options=FULL)

    seen, y, gradient = on_the_wire(gather, torch.full((2,), FINE))
    assert seen == [("all_gather", HALF), ("reduce_scatter", torch.float32)]
    assert (y.dtype, gradient.dtype) == (HALF, torch.float32)
    assert y.tolist() == [1.0] * 4


def test_the_result_is_cast_afterwards():
    def gather(x):
        return all_gather(x, "tp", src=S(0), dst=R, op_dtype=HALF, out_dtype=torch.float32, backward_options=FULL)

    seen, y, gradient = on_the_wire(gather, torch.full((2,), FINE))
    assert seen == [("all_gather", HALF), ("reduce_scatter", torch.float32)]
    assert (y.dtype, y.tolist()) == (torch.float32, [1.0] * 4)
    assert gradient.tolist() == [2 * FINE] * 2


def test_where_only_the_result_has_a_dtype_the_smaller_one_is_moved():
    down, y, _ = on_the_wire(lambda x: all_gather(x, "tp", src=S(0), dst=I, out_dtype=HALF), torch.ones(2))
    assert (down, y.dtype) == ([("all_gather", HALF)], HALF)
    up, y, gradient = on_the_wire(
        lambda x: all_gather(x, "tp", src=S(0), dst=I, out_dtype=torch.float32), torch.ones(2, dtype=HALF)
    )
    assert (up, y.dtype, gradient.dtype) == ([("all_gather", HALF)], torch.float32, HALF)
    summed, y, _ = on_the_wire(lambda x: all_reduce(x, "tp", dst=I, out_dtype=HALF), torch.full((2,), FINE))
    assert (summed, y.dtype) == ([("all_reduce", torch.float32)], HALF)


def test_a_sum_is_taken_in_the_dtype_that_is_named():
    def summed(x):
        return all_reduce(x, "tp", src=P, dst=R, op_dtype=torch.float64, backward_options={"op_dtype": HALF})

    seen, y, gradient = on_the_wire(summed, torch.ones(2))
    assert seen == [("all_reduce", torch.float64), ("all_reduce", HALF)]
    assert (y.dtype, gradient.dtype) == (torch.float64, torch.float32)
    assert gradient.tolist() == [2.0, 2.0]


def test_the_gradient_comes_back_in_the_dtype_of_the_input():
    _, y, gradient = on_the_wire(
        lambda x: reduce_scatter(x, "tp", dst=S(0), op_dtype=torch.float64), torch.ones(4, dtype=HALF)
    )
    assert (y.dtype, gradient.dtype) == (torch.float64, HALF)


def test_backward_has_a_dtype_of_its_result_too():
    """It shows where the gradient is taken further."""

    def program(rank):
        x = torch.ones(2, requires_grad=True)
        y = convert(x, "tp", src=I, dst=R, backward_options={"op_dtype": torch.float64, "out_dtype": HALF})
        (gradient,) = torch.autograd.grad(y, x, torch.full((2,), FINE))
        return gradient.dtype, gradient.tolist()

    assert run_ranks(TWO, program) == [(torch.float32, [2.0, 2.0])] * 2


LOW = [
    (lambda x, **more: all_gather(x, "tp", src=S(0), dst=R, **more), {"op_dtype": HALF}, torch.float32),
    (lambda x, **more: all_gather(x, "tp", src=S(0), dst=R, **more), {"out_dtype": HALF}, torch.float32),
    (lambda x, **more: all_gather(x, "tp", src=S(0), dst=R, **more), {}, HALF),
    (lambda x, **more: convert(x, "tp", src=I, dst=R, **more), {}, torch.float16),
    (lambda x, **more: redistribute(x, src={"tp": S(0)}, dst={"tp": R}, **more), {}, HALF),
    (lambda x, **more: all_reduce(x, "tp", dst=R, **more), {"op_dtype": HALF}, torch.float32),
]


@pytest.mark.parametrize(("call", "arguments", "dtype"), LOW)
def test_a_gradient_is_not_summed_in_low_precision_unless_that_is_said(call, arguments, dtype):
    def program(fix):
        def run(rank):
            x = torch.ones(2, dtype=dtype, requires_grad=True)
            return call(x, **arguments, **fix)

        return run_ranks(TWO, run)

    with pytest.raises(SpmdTypeError, match="sums the gradients") as error:
        program({})
    key, _, value = error.value.problems[0].fix.partition("=")
    program({key: eval(value)})
    with torch.no_grad():
        run_ranks(TWO, lambda rank: call(torch.ones(2, dtype=dtype), **arguments))


def test_what_backward_only_moves_needs_no_word():
    for call in (
        lambda x: all_gather(x, "tp", src=S(0), dst=I),
        lambda x: reduce_scatter(x, "tp", dst=S(0)),
        lambda x: all_reduce(x, "tp", dst=I),
    ):
        run_ranks(TWO, lambda rank, call=call: call(torch.ones(2, dtype=HALF, requires_grad=True)))


def test_the_options_of_a_bound_step_can_be_read():
    def program(rank):
        x = torch.ones(2)
        all_gather(x, "tp", dst=I, gather_dim=1, op_dtype=HALF)
        (bound,) = axis("tp").bound.values()
        return [(step.options.dims, step.options.op_dtype) for each in bound for step in (each, each.backward)]

    assert run_ranks(TWO, program) == [[((1, 1), HALF), ((1, 1), None)]] * 2


def test_every_step_of_a_plan_has_the_dtype_and_the_last_one_that_of_the_result():
    def program(rank):
        x = torch.ones(4, 4, requires_grad=True)
        layouts = {"dp": P, "tp": S(1)}, {"dp": S(1), "tp": R}
        y = redistribute(
            x, src=layouts[0], dst=layouts[1], op_dtype=HALF, out_dtype=torch.float64, backward_options=FULL
        )
        (gradient,) = torch.autograd.grad(y.sum(), x)
        return y.dtype, gradient.dtype

    assert set(run_ranks(ParallelismDims(dp_shard=2, tp=2), program)) == {(torch.float64, torch.float32)}


def test_no_step_at_all_casts_too():
    assert run_ranks(TWO, lambda rank: redistribute(torch.ones(2), "tp", src=R, dst=R, out_dtype=HALF).dtype) == [
        HALF,
        HALF,
    ]


def test_backward_runs_outside_the_scope_and_on_another_thread():
    def forward(rank):
        x = torch.ones(2, requires_grad=True)
        return x, all_reduce(x * (rank + 1), "tp", dst=I)

    for rank, (x, y) in enumerate(run_ranks(TWO, forward)):
        y.sum().backward()
        assert x.grad.tolist() == [rank + 1.0] * 2

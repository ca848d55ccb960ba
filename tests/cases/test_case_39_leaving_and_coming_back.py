"""A part of a sum that goes through a region of local tensors, P -> local -> P, has the gradients that it had."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.backends.parallelize import parallelize
from meshwright.comm.grid import ParallelismDims
from meshwright.core.sharding import LocalMapConfig
from meshwright.train.assemble import processes_backend
from meshwright.types.layout import SpmdLayout
from tests.check.judged import judged, on, refusal
from tests.core.toys import calling
from tests.denotation import sample
from tests.processes import ranks

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S
BACKENDS = ("spmd_types", "full_dtensor", "partial_dtensor")
CUT, PART, WHOLE = (SpmdLayout({"dp": I, "cp": I, "tp": kind}) for kind in (S(1), P, I))


def product(self, x, w):
    return x @ w


def doubled(self, x):
    return x * 2


def summed(self, x):
    return x * 1


def gradients(rank, name, x, w, regions):
    """Of this rank's columns of x and rows of w: their product, a part of the sum over tp, is led through `regions`
    that double it, then summed and squared."""
    dims = ParallelismDims(tp=2)
    backend, _ = processes_backend(dims, rank, "cpu", name)
    rows = CUT.replace(tp=S(0))
    first = calling(product, in_src_shardings={"x": CUT, "w": rows}, out_src_shardings=PART).build()
    inside = {"in_src_shardings": {"x": PART}, "out_src_shardings": PART}
    region = LocalMapConfig(in_grad_shardings={"x": PART.dual})
    between = [
        calling(doubled, **inside, **({"local_map": region} if is_region else {})).build() for is_region in regions
    ]
    last = calling(summed, in_src_shardings={"x": PART}, in_dst_shardings={"x": WHOLE}, out_src_shardings=WHOLE).build()
    for module in (first, *between, last):
        parallelize(module, backend)
    mine = [part.chunk(2, dim)[rank].clone().requires_grad_() for part, dim in ((x, 1), (w, 0))]
    with backend.scope():
        y = first(backend.enter(mine[0], CUT), backend.enter(mine[1], rows))
        for module in between:
            y = module(y)
        backend.leave(last(y), WHOLE).square().sum().backward()
    return [part.grad for part in mine]


@pytest.mark.parametrize("backend", BACKENDS)
def test_on_every_backend_the_gradients_are_those_of_one_device_with_and_without_the_region(backend):
    x, w = sample((3, 4), 0), sample((4, 2), 1)
    whole = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    (whole[0] @ whole[1] * 4).square().sum().backward()
    for regions in ((False, False), (True, False), (True, True)):
        parts = ranks(2).run(gradients, backend, x, w, regions)
        for place, dim in enumerate((1, 0)):
            torch.testing.assert_close(torch.cat([part[place] for part in parts], dim), whole[place].grad)


def led_through(x, w, dims, leave):
    def program(rank):
        mine = [
            spmd.assert_type(part.chunk(dims.tp, dim)[rank].clone().requires_grad_(), {"tp": S(dim)})
            for part, dim in ((x, 1), (w, 0))
        ]
        y = mine[0] @ mine[1]
        if leave:
            y = spmd.local_map(in_types=({"tp": P},), out_types={"tp": P})(lambda y: y * 1)(y)
        spmd.all_reduce(y, "tp", src=P, dst=I).square().sum().backward()
        return [part.grad for part in mine]

    return program


@settings(max_examples=8, deadline=None)
@given(tp=st.integers(1, 3), rows=st.integers(1, 3), each=st.integers(1, 2), seed=st.integers(0, 99))
def test_judged_whatever_the_shapes(tp, rows, each, seed):
    dims, x, w = on("tp", tp), sample((rows, tp * each), seed), sample((tp * each, 2), seed + 1)
    kept, left = (judged(led_through(x, w, dims, leave), dims) for leave in (False, True))
    for mine, other in zip(kept, left, strict=True):
        assert all(map(torch.equal, mine, other))


def test_coming_back_as_something_else_is_refused():
    """A local part that is called whole would be summed once too little, and its gradient once too often."""

    def program(rank):
        x = spmd.assert_type(torch.ones(2, requires_grad=True), {"tp": P})
        spmd.local_map(in_types=({"tp": P},), out_types={"tp": I})(lambda y: y * 1)(x)

    assert "tp" in str(refusal(program, on("tp", 2)))

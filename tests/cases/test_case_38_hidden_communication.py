"""Nothing is sent that is not declared: V S(0)S(1) times R costs no collective, in forward and backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor

import meshwright.spmd as spmd
from benchmarks.eager_step import fake_world
from meshwright.audit.meter import Meter, metered_view
from meshwright.backends.parallelize import parallelize
from meshwright.comm.grid import ParallelismDims
from meshwright.train.assemble import local_backend, processes_backend
from meshwright.types.layout import SpmdLayout
from tests.backends.collectives.record import Called, Recorder
from tests.cases.agreement import Held, agrees
from tests.check.judged import refusal
from tests.core.toys import calling
from tests.denotation import sample

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S
BACKENDS = ("spmd_types", "full_dtensor", "partial_dtensor")
CUT = SpmdLayout({"dp": S(0), "cp": R, "tp": S(1)})
WHOLE = SpmdLayout({"dp": R, "cp": R, "tp": R})


def product(self, x, w):
    return x * w


def shares(self, x, w):
    return (x * w).softmax(1)


def on_a_rank(name, forward, x, w):
    """Result, gradient of `w`, and what was called: on a rank of dp 2 x tp 4."""
    dims = ParallelismDims(dp_shard=2, tp=4)
    with fake_world():
        backend, _ = processes_backend(dims, 0, "cpu", name)
        module = calling(forward, in_src_shardings={"x": CUT, "w": WHOLE}, out_src_shardings=CUT).build()
        parallelize(module, backend)
        recorder = Recorder([module], dims)
        with backend.scope(), recorder.on():
            out = module(backend.enter(x, CUT), backend.enter(w, WHOLE))
            assert isinstance(out, DTensor) is (name != "spmd_types")
            local = backend.leave(out, CUT)
            local.sum().backward()
    return local.detach(), w.grad, dict(recorder.calls)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=5, deadline=None)
@given(rows=st.integers(1, 3), columns=st.integers(1, 3), seed=st.integers(0, 99))
def test_a_cut_tensor_times_a_whole_one_sends_nothing(backend, rows, columns, seed):
    x, w = sample((rows, columns), seed), sample((1, 1), seed + 1).requires_grad_()
    out, grad, calls = on_a_rank(backend, product, x, w)
    assert torch.equal(out, x * w.detach())
    torch.testing.assert_close(grad, x.sum().reshape(1, 1))
    assert calls == {}


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_a_gather_that_dtensor_would_make_in_secret_is_refused(backend):
    x, w = sample((2, 3), 0), sample((1, 1), 1).requires_grad_()
    with pytest.raises(RuntimeError, match="redistribut"):
        on_a_rank(backend, shares, x, w)


def test_and_the_checker_refuses_it_on_plain_tensors():
    def program(rank):
        spmd.assert_type(torch.ones(2, 3), {"dp": S(0), "tp": S(1)}).softmax(1)

    assert "tp" in str(refusal(program, ParallelismDims(dp_shard=2, tp=2)))


@settings(max_examples=10, deadline=None)
@given(dp=st.integers(1, 3), tp=st.integers(1, 3), rows=st.integers(1, 2), columns=st.integers(1, 2))
def test_judged_on_plain_tensors_the_product_lies_as_the_cut_one(dp, tp, rows, columns):
    x = Held(sample((dp * rows, tp * columns), 3), {"dp": S(0), "tp": S(1)})
    w = Held(sample((dp * rows, tp * columns), 4)[:1, :1], {"dp": R, "tp": R})
    assert agrees(lambda x, w: x * w, ParallelismDims(dp_shard=dp, tp=tp), x=x, w=w) == x.layout


def test_the_table_has_no_row_of_it():
    dims, meter = ParallelismDims(dp_shard=2, tp=4), Meter()
    backend = local_backend(dims, 0, metered_view(dims, 0, meter))
    sharding = {"in_src_shardings": {"x": CUT, "w": WHOLE}, "out_src_shardings": CUT}
    module, moved = (
        calling(product, **sharding, out_dst_shardings=layout).build() for layout in (CUT, CUT.replace(tp=R))
    )
    for each in (module, moved):
        parallelize(each, backend)
    x, w = torch.empty(2, 3, device="meta"), torch.empty(1, 1, device="meta")
    with backend.scope():
        module(x, w)
        assert meter.calls == {}
        moved(x, w)
    assert [op for _, _, op in meter.calls] == ["all_gather"]


def test_what_is_sent_on_purpose_is_recorded():
    """The count of none above is of what would have been seen."""
    dims = ParallelismDims(dp_shard=2, tp=4)
    for name in BACKENDS:
        with fake_world():
            backend, _ = processes_backend(dims, 0, "cpu", name)
            sharding = {"in_src_shardings": {"x": CUT, "w": WHOLE}, "out_src_shardings": CUT}
            module = calling(product, **sharding, out_dst_shardings=CUT.replace(tp=R)).build()
            parallelize(module, backend)
            recorder = Recorder([module], dims)
            with backend.scope(), recorder.on():
                module(backend.enter(torch.ones(2, 3), CUT), backend.enter(torch.ones(1, 1), WHOLE))
        assert recorder.calls == {Called("Called", "all_gather", "tp", "forward", 3 * 24): 1}

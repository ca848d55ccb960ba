"""What goes from one rank to another, on a process group without processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.errors import SpmdTypeError

R, V, S = spmd.R, spmd.V, spmd.S
isend, irecv = dist.isend, dist.irecv
"""As a module has them that took them before anybody checked."""


def batch(*edges):
    for work in dist.batch_isend_irecv(list(edges)):
        work.wait()


RECEIVED = {
    "recv": lambda x, tp: dist.recv(x, 1, group=tp),
    "irecv": lambda x, tp: dist.irecv(x, 1, group=tp).wait(),
    "by keyword": lambda x, tp: dist.recv(tensor=x, src=1, group=tp),
    "in a batch": lambda x, tp: batch(dist.P2POp(dist.isend, torch.ones(4), 1, tp), dist.P2POp(dist.irecv, x, 1, tp)),
    "in a batch by an early name": lambda x, tp: batch(
        dist.P2POp(isend, torch.ones(4), 1, group=tp), dist.P2POp(op=irecv, tensor=x, peer=1, group=tp)
    ),
}


@pytest.mark.parametrize("name", RECEIVED)
def test_what_has_a_type_is_a_ranks_own_between_the_ranks(name, tp):
    x = spmd.assert_type(torch.ones(4), {"dp": R, "tp": R})
    RECEIVED[name](x, tp)
    assert spmd.layout_of(x) == {"dp": R, "tp": V}


@pytest.mark.parametrize("make", [torch.empty, torch.zeros])
@pytest.mark.parametrize("name", RECEIVED)
def test_of_a_buffer_its_author_says_what_came(name, make, tp):
    x, other, whole = make(4), torch.ones(4), torch.ones(4)
    spmd.assert_type(other, {"tp": S(0)})
    spmd.assert_type(whole, {"tp": R})
    RECEIVED[name](x, tp)
    with pytest.raises(SpmdTypeError) as error:
        _ = x + whole
    assert error.value.problems[0].code is Code.UNTYPED
    assert spmd.layout_of(spmd.assert_type(x, {"tp": S(0)}) + other) == {"tp": S(0)}


SENT = {
    "send": lambda x, tp: dist.send(x, 1, group=tp),
    "isend": lambda x, tp: dist.isend(x, 1, group=tp).wait(),
    "in a batch": lambda x, tp: batch(dist.P2POp(dist.isend, x, 1, tp)),
}


@pytest.mark.parametrize("name", SENT)
def test_a_gradient_does_not_come_back_over_an_edge(name, tp):
    x = spmd.assert_type(torch.ones(4, requires_grad=True), {"tp": R})
    with pytest.raises(SpmdTypeError) as error:
        SENT[name](x, tp)
    assert error.value.problems[0].code is Code.RAW_COLLECTIVE
    SENT[name](x.detach(), tp)
    assert spmd.layout_of(x) == {"tp": R}


def test_where_nobody_checks_torch_has_its_own_names(tp):
    assert dist.isend is not isend
    with spmd.no_typecheck("another block"):
        assert dist.P2POp(dist.isend, torch.ones(4), 1, tp).op is isend


def test_no_rank_takes_the_part_of_another(tp):
    x = spmd.assert_type(torch.ones(4), {"tp": S(0)})
    with pytest.raises(SpmdTypeError) as error:
        dist.broadcast(x, 0, group=tp)
    assert "S(0)" in error.value.problems[0].what
    own = spmd.assert_type(torch.ones(4), {"tp": V})
    dist.broadcast(own, 0, group=tp)
    assert spmd.layout_of(own) == {"tp": R}

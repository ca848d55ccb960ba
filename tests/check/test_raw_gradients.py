"""Gradients that torch.distributed reduces in place, by any name of them, on a process group without processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.errors import SpmdTypeError

R, S = spmd.R, spmd.S


NAMES = {
    "itself": lambda p, buffer: p.grad,
    "its data": lambda p, buffer: p.grad.data,
    "detached": lambda p, buffer: p.grad.detach(),
    "flat": lambda p, buffer: p.grad.view(-1),
    "flat data": lambda p, buffer: p.grad.data.view(-1),
    "the buffer that it lies in": lambda p, buffer: buffer,
}


def stepped(mesh, name, times, axis="dp"):
    """A step on a weight that is alike over dp, whose gradient lies in a buffer and is reduced by a name of it."""
    with spmd.set_current_mesh(mesh), spmd.typecheck():
        x = spmd.assert_type(torch.randn(4, 6), {"dp": S(0), "tp": R})
        p = spmd.assert_type(torch.randn(6, 4, requires_grad=True), {"dp": R, "tp": S(1)})
        buffer = torch.zeros(24)
        if name == "the buffer that it lies in":
            p.grad = buffer.view(6, 4)
        for _ in range(2):
            (x @ p).square().sum().backward()
        for _ in range(times):
            dist.all_reduce(NAMES[name](p, buffer), group=mesh.get_group(axis))
        torch.optim.AdamW([p]).step()
        return spmd.layout_of(p.grad)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_reduced_is_known_of_the_gradient(name, mesh):
    assert stepped(mesh, name, times=1)["dp"] is R


@pytest.mark.parametrize("name", NAMES)
def test_what_was_not_is_no_gradient(name, mesh):
    with pytest.raises(SpmdTypeError) as error:
        stepped(mesh, name, times=0)
    assert "P on axis 'dp'" in error.value.problems[0].what


@pytest.mark.parametrize("name", NAMES)
def test_twice_is_once_too_often(name, mesh):
    with pytest.raises(SpmdTypeError) as error:
        stepped(mesh, name, times=2)
    assert error.value.problems[0].code is Code.RAW_COLLECTIVE


@pytest.mark.parametrize("name", NAMES)
def test_another_axis_is_another_sum(name, mesh):
    with pytest.raises(SpmdTypeError):
        stepped(mesh, name, times=1, axis="tp")


def test_what_is_added_to_what_was_reduced_is_refused(mesh):
    with spmd.set_current_mesh(mesh), spmd.typecheck():
        x = spmd.assert_type(torch.randn(4, 6), {"dp": S(0)})
        p = spmd.assert_type(torch.randn(6, 4, requires_grad=True), {"dp": R})
        buffer = torch.zeros(24)
        p.grad = buffer.view(6, 4)
        (x @ p).square().sum().backward()
        dist.all_reduce(buffer, group=mesh.get_group("dp"))
        with pytest.raises(SpmdTypeError) as error:
            (x @ p).square().sum().backward()
        assert error.value.problems[0].code is Code.REDUCED

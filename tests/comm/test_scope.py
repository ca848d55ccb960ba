"""The ambient mesh: axis names are looked up in the view that this thread entered last."""

import threading

import pytest
import torch

from meshwright.comm.collectives import all_reduce, redistribute
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import View, axis, axis_index, axis_size, current_mesh, set_current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.comm.transport import Alone
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S

DENSE = View({name: Alone(name) for name in ("dp", "cp", "tp")})
SPARSE = View({name: Alone(name) for name in ("efsdp", "ep")})


def test_views_nest_and_the_outer_one_comes_back():
    assert current_mesh() is None
    with set_current_mesh(DENSE) as entered:
        assert entered is current_mesh() is DENSE
        with set_current_mesh(SPARSE):
            assert current_mesh() is SPARSE
            assert axis("ep") is SPARSE["ep"]
        assert current_mesh() is DENSE
    assert current_mesh() is None


def test_an_error_inside_leaves_the_view():
    with pytest.raises(RuntimeError, match="inside"), set_current_mesh(DENSE):
        raise RuntimeError("inside")
    assert current_mesh() is None


def test_each_thread_has_its_own_stack():
    seen = []
    with set_current_mesh(DENSE):
        thread = threading.Thread(target=lambda: seen.append(current_mesh()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_an_unknown_axis_lists_those_of_the_current_mesh():
    with set_current_mesh(SPARSE), pytest.raises(SpmdTypeError, match=r"axis 'ep_'[\s\S]*one of 'efsdp', 'ep'"):
        all_reduce(torch.ones(2), "ep_", src=P, dst=R)


def test_outside_every_mesh_the_error_says_how_to_enter_one():
    with pytest.raises(SpmdTypeError, match=r"no mesh is current[\s\S]*with set_current_mesh\(view\)"):
        axis_index("tp")


def test_a_view_says_which_axes_are_on():
    def view(rank):
        mesh = current_mesh()
        assert mesh is not None
        return mesh.degree, mesh.index, axis_size("tp"), axis_index("tp"), "pp" in mesh, len(mesh), str(mesh)

    first, last = run_ranks(ParallelismDims(tp=2), view)
    assert first[:4] == ({"tp": 2, "tp_kv": 2}, {"tp": 0, "tp_kv": 0}, 2, 0)
    assert last[:4] == ({"tp": 2, "tp_kv": 2}, {"tp": 1, "tp_kv": 1}, 2, 1)
    assert last[4:] == (False, 5, "View(dp 1, cp 1, tp 2, tp_kv 2, tp_copy 1)")


def _loss(x):
    return (redistribute(x, "tp", src=I, dst=R) * redistribute(x * 2, "tp", src=I, dst=S(0)).sum()).sum()


def test_backward_runs_outside_the_scope_and_on_another_thread():
    """What the collective was bound to in forward is what backward uses."""
    dims = ParallelismDims(tp=2)

    def gradient(rank, outside):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        loss = _loss(x)
        if outside:
            with set_current_mesh(SPARSE):
                thread = threading.Thread(target=loss.backward)
                thread.start()
                thread.join()
        else:
            loss.backward()
        return x.grad

    inside = run_ranks(dims, lambda rank: gradient(rank, outside=False))
    outside = run_ranks(dims, lambda rank: gradient(rank, outside=True))
    for mine, other in zip(inside, outside, strict=True):
        assert torch.equal(mine, other)
        assert not torch.equal(mine, torch.zeros(2))

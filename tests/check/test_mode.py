"""When calls are judged, and what is said of tensors without a type and of functions without a rule."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.check import layout_of
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import set_current_mesh
from meshwright.comm.shapes import shape_view
from meshwright.errors import SpmdTypeError
from tests.check.judged import on, refusal, says

TWO = on("tp", 2)
R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


@pytest.fixture
def alone():
    """One rank of two, checked, without the other."""
    with set_current_mesh(shape_view(TWO, 0)), spmd.typecheck():
        yield


def tensor(kind, *shape, wants=False):
    return spmd.assert_type(torch.ones(*shape).requires_grad_(wants), {"tp": kind})


def test_it_is_on_inside_the_block_only():
    assert not spmd.is_type_checking()
    with spmd.typecheck():
        assert spmd.is_type_checking()
        with spmd.typecheck():
            assert spmd.is_type_checking()
        assert spmd.is_type_checking()
        with spmd.no_typecheck():
            assert not spmd.is_type_checking()
            with spmd.no_typecheck():
                assert not spmd.is_type_checking()
            assert not spmd.is_type_checking()
        assert spmd.is_type_checking()
    assert not spmd.is_type_checking()


def test_it_is_off_after_an_error():
    with pytest.raises(RuntimeError, match="inside"), spmd.typecheck(), spmd.no_typecheck():
        raise RuntimeError("inside")
    assert not spmd.is_type_checking()


def test_it_is_on_in_its_own_thread_only():
    seen = []
    with spmd.typecheck():
        thread = threading.Thread(target=lambda: seen.append(spmd.is_type_checking()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_a_tensor_without_a_type_does_not_meet_one_with():
    problem = refusal(lambda rank: tensor(S(0), 4) * torch.randn(1), TWO)
    says(problem, "tp", "S(0)", "assert_type(other, {'tp': R})")
    assert "other has no type" in problem.what
    assert problem.where.startswith("tests/check/test_mode.py:")
    assert "torch.randn(1)" in problem.where


def test_a_type_is_stated_on_every_axis():
    def program(rank):
        x = spmd.assert_type(torch.ones(4), {"tp": R, "dp": S(0)})
        return x * spmd.assert_type(torch.ones(1), {"tp": R})

    says(refusal(program, ParallelismDims(dp_shard=2, tp=2)), "dp", "S(0)", "assert_type(other, {'dp': R})")


def test_tensors_without_a_type_are_left_alone(alone):
    x = torch.randn(4)
    assert layout_of(torch.special.gammaln(x * 2 + x[0])) == {}


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(()),
        lambda: torch.full((1,), 2.0),
        lambda: torch.tensor(3.0),
        lambda: torch.arange(4.0)[1],
        lambda: torch.eye(2).sum(),
        lambda: torch.ones(2, 2).cumsum(0)[0, 0],
    ],
)
@pytest.mark.parametrize("kind", [R, I, S(0), V])
def test_constants_need_no_type(alone, make, kind):
    assert layout_of(tensor(kind, 4, wants=True) * make()) == {"tp": kind}


def test_a_constant_that_wants_a_gradient_needs_a_type(alone):
    weight = torch.ones(1, requires_grad=True)
    with pytest.raises(SpmdTypeError, match="other has no type on axis 'tp'"):
        tensor(S(0), 4) * weight


def test_a_constant_of_the_local_length_is_not_one_of_the_global_length():
    """Places counted on one rank are not the places in the whole."""
    says(refusal(lambda rank: tensor(S(0), 4) + torch.arange(4.0), TWO), "tp", "S(0)", "convert(other, 'tp', src=R")


def test_zeros_are_of_any_type(alone):
    for kind in (R, I, V, P, S(0)):
        x = tensor(kind, 4, 2, wants=True)
        assert layout_of(x + torch.zeros(4, 2)) == {"tp": kind}
        assert layout_of(x + torch.zeros_like(x)) == {"tp": kind}
        buffer = torch.zeros(4, 2)
        buffer += x
        assert layout_of(buffer) == {"tp": kind}


def test_random_values_have_no_type_until_one_is_stated(alone):
    noise = torch.randn(4)
    with pytest.raises(SpmdTypeError, match="has no type"):
        tensor(R, 4) + noise
    assert layout_of(tensor(R, 4) + spmd.assert_type(noise, {"tp": R})) == {"tp": R}


def test_a_function_without_a_rule_names_two_ways_out(alone):
    x = tensor(R, 4, 4)
    with pytest.raises(SpmdTypeError) as error:
        torch.linalg.ldl_factor(x)
    (problem,) = error.value.problems
    assert "linalg_ldl_factor has no rule" in problem.what
    assert "operations that have a rule" in problem.fix
    assert "no_typecheck" in problem.fix


def test_the_way_out_works(alone):
    x = tensor(R, 4)
    with spmd.no_typecheck():
        y = torch.fft.fft(x).real
    assert layout_of(y) == {}
    y = spmd.assert_type(y, {"tp": R})
    assert layout_of(x + y) == {"tp": R}


def test_a_form_without_a_rule_is_refused_the_same_way(alone):
    with pytest.raises(SpmdTypeError, match=r"this form of embedding[\s\S]*no_typecheck"):
        F.embedding(torch.tensor([0]), tensor(R, 2, 2), max_norm=1.0)


def test_a_wrong_call_that_no_sharding_explains_is_for_torch_to_refuse(alone):
    with pytest.raises(RuntimeError, match=r"size|shapes"):
        tensor(R, 4) + tensor(R, 3)


def test_shapes_must_fit_over_all_ranks():
    def program(rank):
        return tensor(S(0), 1, 2) + spmd.assert_type(torch.ones(3, 2), {"tp": R})

    problem = refusal(program, TWO)
    says(problem, "tp", "S(0)")
    assert "with 2 positions over all ranks, and meets 3" in problem.what


@pytest.mark.parametrize(
    ("x", "y"),
    [({"dp": S(0), "tp": S(0)}, {"tp": S(0), "dp": S(0)})],
)
def test_a_dim_that_is_cut_in_another_order_holds_other_positions(x, y):
    def program(rank):
        return spmd.assert_type(torch.ones(2), x) + spmd.assert_type(torch.ones(2), y)

    problem = refusal(program, ParallelismDims(dp_shard=2, tp=2))
    assert "input is cut over (dp, tp) and other over (tp, dp)" in problem.what


def test_what_is_seen_of_a_tensor_is_seen_as_before(alone):
    x = tensor(S(0), 4, 2, wants=True)
    assert (x.shape, x.dim(), x.numel(), x.stride()) == ((4, 2), 2, 8, (2, 1))
    assert x.dtype is torch.float32
    assert x.is_leaf
    assert "requires_grad=True" in repr(x)
    assert x.size(0) == 4


READS = {
    "tolist": lambda x: x.tolist(),
    "item": lambda x: x.sum(-1).item(),
    "bool": lambda x: bool((x > 0).all(-1)),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "numpy": lambda x: x.numpy(),
}


@pytest.mark.parametrize("kind", [S(0), V])
@pytest.mark.parametrize("read", READS)
def test_values_that_differ_between_ranks_are_not_read(kind, read):
    problem = refusal(lambda rank: READS[read](tensor(kind, 1, 2)), TWO)
    says(problem, "tp", f"{kind!r}", f"{kind!r} -> R: all_gather(x, 'tp'")


@pytest.mark.parametrize("kind", [R, I])
def test_values_that_are_the_same_everywhere_are_read(alone, kind):
    x = tensor(kind, 2)
    assert all(read(x[None]) is not None for read in READS.values())
    assert x.sum().item() == 2.0
    assert x.tolist() == [1.0, 1.0]
    assert f"{x.sum():.1f}" == "2.0"
    assert x.sum() > 1


def test_copies_keep_the_type(alone):
    x = tensor(S(0), 4)
    assert layout_of(copy.deepcopy(x)) == layout_of(x.clone()) == layout_of(x.detach()) == {"tp": S(0)}
    assert layout_of(pickle.loads(pickle.dumps(x))) == {"tp": S(0)}


def test_a_tensor_keeps_its_type_as_long_as_it_lives():
    def assign(rank):
        tensor(R, 4).data = tensor(S(0), 4)

    def add(rank):
        tensor(R, 1).add_(tensor(S(0), 1))

    def write(rank):
        tensor(R, 4, 2)[:, 0] = tensor(V, 4)

    for program, kind in ((assign, S(0)), (add, S(0)), (write, V)):
        problem = refusal(program, TWO)
        says(problem, "tp", f"{kind!r}, R")
        assert "as long as it lives" in problem.why


def test_the_same_call_is_judged_again_on_another_mesh():
    for degree in (2, 4):
        with spmd.typecheck(), set_current_mesh(shape_view(on("tp", degree), 0)):
            x = tensor(S(0), 1, 2)
            with pytest.raises(SpmdTypeError, match=f"{degree} positions over all ranks"):
                x + spmd.assert_type(torch.ones(3, 2), {"tp": R})


def test_a_name_means_the_same_ranks_as_long_as_one_check_lasts():
    with spmd.typecheck(), set_current_mesh(spmd.mesh(tp=2)):
        x = tensor(R, 4)
        with set_current_mesh(spmd.mesh(tp=4)), pytest.raises(SpmdTypeError, match="names other ranks"):
            x.exp()


def test_gradients_flow_or_not_by_the_mode_of_the_call(alone):
    weight, x = tensor(I, 2, wants=True), tensor(S(0), 4, 2)
    with torch.no_grad():
        assert layout_of(x * weight) == {"tp": S(0)}
    with pytest.raises(SpmdTypeError, match="I -> R"):
        x * weight

"""A buffer is what was written into it, by whichever name of its memory."""

from __future__ import annotations

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.check.programs_alone import accepted, given, refused

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


def typed(kind, *shape):
    return given(kind, *shape, wants=False)


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float64)


NAMES = {
    "a slice": lambda b: b[1:3],
    "a slice of a dim behind": lambda b: b[:, 2:],
    "a view of a view": lambda b: b.view(2, 2, 6)[1].view(2, 6),
    "split": lambda b: b.split(2)[1],
    "chunk along a dim behind": lambda b: b.chunk(2, dim=1)[0],
    "unbind": lambda b: b.unbind()[3],
    "transposed": lambda b: b.T[2:],
    "narrow of detach": lambda b: b.detach().narrow(0, 1, 2),
    ".data": lambda b: b.data[3],
    "as_strided": lambda b: b.as_strided((3,), (7,)),
    "select of an unflattened": lambda b: b.view(-1).unflatten(0, (8, 3))[5],
    "the diagonal": lambda b: b.diagonal(),
}
WRITES = {
    "copy_": lambda part, x: part.copy_(x),
    "add_": lambda part, x: part.add_(x),
    "+=": lambda part, x: part.__iadd__(x),
    "[...] =": lambda part, x: part.__setitem__(..., x),
    "out=": lambda part, x: torch.mul(x, 2.0, out=part),
    "foreach_copy_": lambda part, x: torch._foreach_copy_([part], [x]),
    "foreach_add_": lambda part, x: torch._foreach_add_([part], [x]),
    "lerp_": lambda part, x: part.lerp_(x, 0.5),
}


@pytest.mark.parametrize("kind", [P, V, R])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", NAMES)
def test_a_buffer_of_zeros_is_what_is_written_into_a_view_of_it(name, write, kind):
    def program():
        buffer = zeros(4, 6)
        part = NAMES[name](buffer)
        WRITES[write](part, typed(kind, *part.shape))
        return buffer.view(-1)

    assert accepted(program) == {"tp": kind}


def test_a_name_made_before_is_what_is_written_by_another():
    def program():
        buffer = zeros(4, 6)
        before = buffer[1:]
        buffer[:2].copy_(typed(P, 2, 6))
        return before

    assert accepted(program) == {"tp": P}


def test_what_lies_elsewhere_stays_untyped():
    def program():
        buffer = zeros(4, 6)
        there = buffer[2:]
        buffer[:2].copy_(typed(P, 2, 6))
        return there.add_(typed(V, 2, 6))

    assert accepted(program) == {"tp": V}


def test_a_sharded_dim_is_found_again_under_another_name():
    def program():
        cache = zeros(3, 8, 2, 5)
        cache[:, 2:4].copy_(typed(S(2), 3, 2, 2, 5))
        return cache.transpose(1, 2)

    assert accepted(program) == {"tp": S(1)}


def test_the_cut_positions_of_a_written_part_are_not_those_of_the_buffer():
    def program():
        buffer = zeros(4, 6)
        buffer[1:3].copy_(typed(S(0), 2, 6))
        return buffer

    assert accepted(program) == {"tp": V}


def mixed():
    buffer = zeros(6)
    one, other = buffer[:2], buffer[2:]
    one.copy_(typed(P, 2))
    other.copy_(typed(V, 4))
    return buffer


def test_parts_of_a_sum_beside_what_is_none_are_no_tensor():
    for use in (lambda b: b * 2.0, lambda b: spmd.assert_type(b, {"tp": R}), lambda b: b.sum()):
        problem = refused(lambda use=use: use(mixed()), Code.WRITE)
        assert "'tp'" in problem.what


def test_a_mixed_buffer_can_be_cleared_and_its_parts_used():
    def program():
        buffer = zeros(6)
        one, other = buffer[:2], buffer[2:]
        one.copy_(typed(P, 2))
        other.copy_(typed(V, 4))
        buffer.zero_()
        return spmd.all_reduce(one, "tp", src=P, dst=R)

    assert accepted(program) == {"tp": R}


def test_ones_beside_a_part_of_a_sum_would_be_counted_once_a_rank():
    def program():
        buffer = torch.ones(4, dtype=torch.float64)
        buffer[:2].copy_(typed(P, 2))
        return buffer * 2.0

    refused(program, Code.WRITE)


@pytest.mark.parametrize("fill", [lambda b: b[:2].fill_(1.0), lambda b: b.__setitem__(0, 1.0), lambda b: b[1].add_(1)])
def test_zeros_of_which_a_part_was_filled_are_zeros_no_more(fill):
    def program():
        buffer = zeros(4)
        fill(buffer)
        return buffer + typed(P, 4)

    refused(program, Code.PARTIAL_PLUS)


def test_values_without_a_type_leave_the_buffer_without_one():
    def program():
        buffer = zeros(4)
        buffer[:2].copy_(torch.randn(2, dtype=torch.float64))
        return buffer + typed(R, 4)

    refused(program, Code.UNTYPED)


def stated_whole():
    flat = zeros(6)
    part = flat[2:5]
    spmd.assert_type(flat, {"tp": R})
    part.copy_(typed(V, 3))


def stated_part():
    flat = zeros(6)
    spmd.assert_type(flat[2:5], {"tp": R})
    flat.copy_(typed(V, 6))


def flat_parameter():
    flat = zeros(6)
    p = torch.nn.Parameter(zeros(3))
    p.data = flat[3:]
    spmd.assert_type(p, {"tp": R})
    flat[3:].copy_(typed(V, 3))


def flat_parameter_typed_before():
    flat = zeros(6)
    p = torch.nn.Parameter(typed(I, 3))
    p.data = flat[3:]
    flat.view(2, 3)[1].mul_(typed(V, 3))


@pytest.mark.parametrize("program", [stated_whole, stated_part, flat_parameter, flat_parameter_typed_before])
def test_a_type_that_is_stated_of_one_name_holds_for_the_others(program):
    assert "'tp'" in refused(program, Code.WRITE).what


def test_a_parameter_is_not_stated_to_be_what_its_memory_is_not():
    def program():
        flat = typed(V, 6)
        p = torch.nn.Parameter(zeros(3))
        later = zeros(6)
        p.data = later[:3]
        later.copy_(flat)
        spmd.assert_type(p, {"tp": R})

    refused(program, Code.OTHER_TYPE)


def flat_gradients(kind, *, twice=False):
    weight, x = given(R, 3), typed(kind, 2, 3)
    flat = zeros(5)
    weight.grad = flat[1:4]
    (weight * x).sum().backward()
    if twice:
        weight.grad = flat[1:4]
    return weight, flat


def test_backward_adds_to_the_buffer_that_holds_the_gradient():
    assert accepted(lambda: flat_gradients(S(0))[1]) == {"tp": P}
    assert accepted(lambda: flat_gradients(S(0), twice=True)[0].grad) == {"tp": P}


@pytest.mark.parametrize("twice", [False, True])
def test_an_optimizer_refuses_a_gradient_in_a_flat_buffer_that_is_not_reduced(twice):
    def program():
        weight, _ = flat_gradients(S(0), twice=twice)
        torch.optim.SGD([weight], lr=0.1).step()

    refused(program, Code.REDUCED)


def test_a_buffer_given_as_the_gradient_is_what_backward_makes_of_it():
    def program():
        weight = given(R, 3)
        buffer = zeros(3)
        weight.grad = buffer
        (weight * typed(S(0), 2, 3)).sum().backward()
        return spmd.assert_type(buffer, {"tp": R})

    refused(program, Code.OTHER_TYPE)


def test_flat_gradients_reduced_through_the_buffer_are_taken():
    def program():
        weight, flat = flat_gradients(S(0))
        whole = spmd.all_reduce(flat, "tp", src=P, dst=R)
        weight.grad = whole[1:4]
        torch.optim.SGD([weight], lr=0.1).step()
        return weight

    assert accepted(program) == {"tp": R}


def test_values_copied_into_a_state_without_a_type_give_it_theirs():
    def program():
        layer = torch.nn.Linear(4, 2, bias=False, dtype=torch.float64)
        layer.load_state_dict({"weight": typed(S(0), 2, 4)})
        return layer.weight

    assert accepted(program) == {"tp": S(0)}

"""`grouped_linear` is a product for each group: in values and gradients, in every dtype, shape and way of running."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from meshwright.models.grouped import _operator, grouped_linear

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
GROUPS = {
    "uneven": [3, 1, 6],
    "an empty one in between": [4, 0, 6],
    "all in the first": [10, 0, 0],
    "all in the last": [0, 0, 10],
    "rows past the last": [2, 0, 3],
    "every row past the last": [0, 0, 0],
}
SHAPES = {"aligned": (16, 8), "hidden 6": (8, 6), "odd": (5, 7), "one": (1, 1)}
WAYS = {"eager": grouped_linear, "operator": lambda *args: _operator(*args, False)}


def ends(lengths: list[int]) -> torch.Tensor:
    return torch.tensor(lengths).cumsum(0).int()


def sample(rows: int, inside: int, out: int, groups: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + inside)
    shapes = [(rows, inside), (groups, out, inside), (rows, out)]
    x, weight, grad = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    return [x.requires_grad_(), weight.requires_grad_(), grad]


def dense(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """In float64, one group after the other."""
    parts = [x[a:b] @ each.T for (a, b), each in zip(pairwise([0, *offsets.tolist()]), weight, strict=True)]
    return torch.cat([*parts, x.new_zeros(x.shape[0] - int(offsets[-1]), weight.shape[1])])


def with_gradients(function, x, weight, offsets, grad):
    y = function(x, weight, offsets)
    return y.detach(), *torch.autograd.grad(y, (x, weight), grad)


def assert_close(found, true, dtype):
    for mine, theirs in zip(found, true, strict=True):
        assert mine.dtype == dtype
        assert mine.shape == theirs.shape
        assert (mine.double() - theirs).abs().amax() <= TOLERANCE[dtype] * theirs.abs().amax()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lengths", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_values_and_gradients_are_those_of_one_product_after_the_other(dtype, shape, lengths, way):
    x, weight, grad = sample(10, *shape, 3, dtype)
    offsets = ends(lengths)
    found = with_gradients(WAYS[way], x, weight, offsets, grad)
    exact = [each.detach().double().requires_grad_() for each in (x, weight)]
    assert_close(found, with_gradients(dense, *exact, offsets, grad.double()), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rows_past_the_last_group_are_not_read(dtype):
    """Whatever stands in them, and in the gradient that arrives for them; theirs are zeros."""
    x, weight, grad = sample(10, 16, 8, 3, dtype)
    offsets = ends([2, 0, 3])
    clean = with_gradients(grouped_linear, x, weight, offsets, grad)
    with torch.no_grad():
        x[5:], grad[5:] = torch.nan, torch.inf
    found = with_gradients(grouped_linear, x, weight, offsets, grad)
    assert all(torch.equal(a, b) for a, b in zip(found, clean, strict=True))
    assert not found[0][5:].any()
    assert not found[1][5:].any()


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_without_a_row_there_are_zeros_for_the_weights(shape, filled):
    x, weight, grad = sample(0, *shape, 3, torch.float32)
    y = grouped_linear(x, weight, ends([0, 0, 0]), filled=filled)
    assert y.shape == grad.shape
    of_x, of_weight = torch.autograd.grad(y, (x, weight), grad)
    assert of_x.shape == x.shape
    assert of_weight.shape == weight.shape
    assert not of_weight.any()


def test_where_the_rows_are_filled_the_word_of_it_changes_nothing():
    x, weight, grad = sample(10, 16, 8, 3, torch.float32)
    offsets = ends([3, 1, 6])
    plain = with_gradients(grouped_linear, x, weight, offsets, grad)
    filled = with_gradients(lambda *args: grouped_linear(*args, filled=True), x, weight, offsets, grad)
    assert all(torch.equal(a, b) for a, b in zip(plain, filled, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_any_strides(way):
    """Of what comes in, and of the gradient of a sum, which is one number spread over all places."""
    x, weight, grad = sample(12, 8, 12, 3, torch.float32)
    offsets = ends([3, 1, 8])
    true = with_gradients(dense, *(each.detach().double().requires_grad_() for each in (x, weight)), offsets, grad)
    forms = [x.detach().T.contiguous().T, x.detach().repeat(1, 2)[:, :8], torch.stack((x.detach(),) * 2, 1)[:, 0]]
    weights = [weight.detach().transpose(1, 2).contiguous().transpose(1, 2), weight.detach().permute(1, 2, 0)]
    weights[1] = weights[1].contiguous().permute(2, 0, 1)
    for form in forms:
        for each in weights:
            found = with_gradients(WAYS[way], form.requires_grad_(), each.requires_grad_(), offsets, grad)
            assert_close(found, true, torch.float32)


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_is_never_taken_may_be_odd(way):
    """Of one row, and of the one group of weights."""
    x, weight, grad = sample(1, 8, 12, 1, torch.float32)
    odd = x.detach().as_strided((1, 8), (3, 1)).requires_grad_()
    odd_weight = weight.detach().as_strided((1, 12, 8), (5, 8, 1)).requires_grad_()
    odd_grad = grad.as_strided((1, 12), (3, 1))
    found = with_gradients(WAYS[way], odd, odd_weight, ends([1]), odd_grad)
    exact = [each.detach().double().requires_grad_() for each in (x, weight)]
    assert_close(found, with_gradients(dense, *exact, ends([1]), grad.double()), torch.float32)


@pytest.mark.parametrize("way", WAYS)
def test_the_gradient_of_a_sum_is_one_number_spread_over_all_places(way):
    for rows, lengths in ((12, [3, 1, 8]), (1, [0, 1, 0])):
        x, weight, _ = sample(rows, 8, 12, 3, torch.float32)
        WAYS[way](x, weight, ends(lengths)).sum().backward()
        found = x.grad, weight.grad
        _, *true = with_gradients(dense, x, weight, ends(lengths), torch.ones(rows, 12))
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, true, strict=True))


def test_runs_repeat_to_the_last_bit():
    x, weight, grad = sample(10, 16, 8, 3, torch.float32)
    first, second = (with_gradients(grouped_linear, x, weight, ends([3, 1, 6]), grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


WITHOUT_VALUES = {"meta": nullcontext, "meta by default": lambda: torch.device("meta"), "fake": FakeTensorMode}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("context", WITHOUT_VALUES.values(), ids=WITHOUT_VALUES)
def test_shapes_are_known_without_values(context, dtype):
    device = "meta" if context is nullcontext else None
    with context():
        x = torch.empty(10, 5, dtype=dtype, device=device, requires_grad=True)
        weight = torch.empty(3, 7, 5, dtype=dtype, device=device, requires_grad=True)
        y = grouped_linear(x, weight, torch.empty(3, dtype=torch.int32, device=device))
        assert (y.shape, y.dtype) == ((10, 7), dtype)
        y.sum().backward()
    for each in (x, weight):
        assert (each.grad.shape, each.grad.dtype) == (each.shape, dtype)


@pytest.mark.parametrize("shape", [SHAPES["aligned"], SHAPES["odd"]], ids=["aligned", "odd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_it_compiles_as_one_graph(dtype, shape):
    torch._dynamo.reset()
    x, weight, grad = sample(10, *shape, 3, dtype)
    compiled = torch.compile(grouped_linear, fullgraph=True)
    for lengths in GROUPS.values():
        found, true = (with_gradients(each, x, weight, ends(lengths), grad) for each in (compiled, grouped_linear))
        assert all(torch.equal(a, b) for a, b in zip(found, true, strict=True))


@pytest.mark.parametrize("wants", [(True, False), (False, True)])
def test_only_the_gradient_that_is_wanted(wants):
    x, weight, grad = sample(10, 16, 8, 3, torch.float32)
    both = with_gradients(grouped_linear, x, weight, ends([3, 1, 6]), grad)
    x.requires_grad_(wants[0])
    weight.requires_grad_(wants[1])
    grouped_linear(x, weight, ends([3, 1, 6])).backward(grad)
    for each, wanted, true in zip((x, weight), wants, both[1:], strict=True):
        assert torch.equal(each.grad, true) if wanted else each.grad is None


def test_the_operator_is_what_torch_asks_of_one():
    x, weight, _ = sample(10, 16, 8, 3, torch.float32)
    torch.library.opcheck(_operator, (x, weight, ends([3, 1, 6]), True))

"""The single-device answer, against which every rule is held.

A program is judged on the local tensors of each rank in turn. If the checker accepts it, what the ranks hold must
denote what one device computes from the whole tensors, and their gradients must denote its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.check import assert_type, layout_of, typecheck
from meshwright.check.tag import Factors, read, typed, write
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import set_current_mesh
from meshwright.comm.shapes import shape_view
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import V
from meshwright.types.layout import SpmdLayout
from tests.denotation import denoted, local, sample

TP = ParallelismDims(tp=2)
GRID = ParallelismDims(dp_shard=2, tp=2)


@dataclass(frozen=True)
class Given:
    """An operand: the whole tensor, with a leading dim where it is a list, its layout, whether it wants a gradient."""

    whole: Tensor
    layout: SpmdLayout
    wants: bool = True


def positive(*shape: int, seed: int = 0) -> Tensor:
    """Whole numbers from 1 to 9."""
    return sample(shape, seed).abs() + 1


def verdict(program: Callable[..., Any], operands: Sequence[Given], dims: ParallelismDims = TP) -> Any:
    """The layout of the program's result, or the `SpmdTypeError` that refuses it; of several results a tuple.

    Asserts that an accepted program agrees with one device.
    """
    expected = _one_device(program, operands)
    shapes = [tuple(result.shape) for result in expected.results]
    try:
        held = [_on_rank(program, operands, shapes, dims, rank) for rank in range(dims.world)]
    except SpmdTypeError as refused:
        return refused
    layouts = held[0].layouts
    assert all(other.layouts == layouts for other in held), "ranks disagree on the type"
    for place, layout in enumerate(layouts):
        found = denoted(layout, [rank.results[place] for rank in held], dims, held[0].factors[place])
        _demand_close(found, expected.results[place], f"result {place} {layout}")
    for place, operand in enumerate(operands):
        if expected.gradients[place] is not None:
            found = denoted(operand.layout.dual, [rank.gradients[place] for rank in held], dims)
            _demand_close(found, expected.gradients[place], f"gradient of operand {place} {operand.layout}")
    return layouts[0] if len(layouts) == 1 else layouts


@dataclass
class _Computed:
    results: list[Tensor]
    gradients: list[Any]
    layouts: tuple[SpmdLayout, ...] = ()
    factors: tuple[Factors | None, ...] = ()


def _on_rank(
    program: Callable[..., Any],
    operands: Sequence[Given],
    shapes: Sequence[tuple[int, ...]],
    dims: ParallelismDims,
    rank: int,
) -> _Computed:
    with set_current_mesh(shape_view(dims, rank)), typecheck():
        inputs = []
        for operand in operands:
            x = local(operand.layout, operand.whole, dims, rank)
            x.requires_grad_(operand.wants and x.is_floating_point())
            inputs.append(assert_type(x, operand.layout))
        results = _listed(program(*inputs))
        tags = [read(result) for result in results]
        layouts, factors = tuple(tag.layout for tag in tags), tuple(tag.factors for tag in tags)
        _demand_layouts(operands, layouts)
        seeds = []
        for place, (tag, shape) in enumerate(zip(tags, shapes, strict=True)):
            seed = local(tag.layout.dual, sample(shape, seed=50 + place), dims, rank, tag.factors)
            write(seed, typed(tag.layout.dual, factors=tag.factors))
            seeds.append(seed)
        gradients = _gradients(results, inputs, seeds)
        for operand, gradient in zip(operands, gradients, strict=True):
            assert gradient is None or layout_of(gradient) == operand.layout.dual
    return _Computed([result.detach() for result in results], gradients, layouts, factors)


def _demand_layouts(operands: Sequence[Given], layouts: Sequence[SpmdLayout]) -> None:
    axes = {axis for operand in operands for axis in operand.layout}
    assert all(set(layout) == axes for layout in layouts), "a result has a type on every axis"


def _one_device(program: Callable[..., Any], operands: Sequence[Given]) -> _Computed:
    """On the whole tensors; where one is a list, for each entry of it."""
    inputs = [
        operand.whole.clone().requires_grad_(operand.wants and operand.whole.is_floating_point())
        for operand in operands
    ]
    lists = [V in operand.layout.values() for operand in operands]
    if any(lists):
        entries = max(len(x) for x, listed in zip(inputs, lists, strict=True) if listed)
        each = [
            _listed(program(*(x[entry] if listed else x for x, listed in zip(inputs, lists, strict=True))))
            for entry in range(entries)
        ]
        results = [torch.stack(column) for column in zip(*each, strict=True)]
    else:
        results = _listed(program(*inputs))
    seeds = [sample(result.shape, seed=50 + place) for place, result in enumerate(results)]
    return _Computed([result.detach() for result in results], _gradients(results, inputs, seeds))


def _gradients(results: Sequence[Tensor], inputs: Sequence[Tensor], seeds: Sequence[Tensor]) -> list[Any]:
    roots = [(result, seed) for result, seed in zip(results, seeds, strict=True) if result.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    if not roots or not wanted:
        return [None] * len(inputs)
    outputs, grads = zip(*roots, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, grads, allow_unused=True))
    return [next(found) if x.requires_grad else None for x in inputs]


def _listed(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


def _demand_close(found: Tensor, expected: Tensor, what: str) -> None:
    assert found.shape == expected.shape, f"{what}: {tuple(found.shape)} is not {tuple(expected.shape)}"
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True, msg=lambda m: f"{what}: {m}")

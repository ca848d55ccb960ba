"""The judgement of one call on given layouts: accepted, refused, refused needlessly, or a lie.

A call that the checker accepts must denote what one device computes, and its gradients that device's gradients. A call
that it refuses is run unchecked on what the ranks hold; where that denotes the one-device values and gradients under
some layout of the results, the refusal was needless.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from meshwright.check import assert_type, typecheck
from meshwright.check.tag import Tag, read, typed
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import set_current_mesh
from meshwright.comm.shapes import shape_view
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, SpmdType, V
from meshwright.types.layout import SpmdLayout
from tests.oracle.held import denotes, held, tolerance, values
from tests.oracle.sample import Sample

view = lru_cache(shape_view)


class Verdict(Enum):
    """What came of one call."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    NEEDLESS = "needless"


class Lie(AssertionError):
    """What was accepted does not denote what one device computes, or an error is of another class."""


@dataclass(frozen=True)
class Case:
    """One call: layouts of the operands, which of them want a gradient, on which mesh."""

    sample: Sample
    layouts: tuple[SpmdLayout, ...]
    wants: tuple[bool, ...]
    dims: ParallelismDims

    def __str__(self) -> str:
        shown = ", ".join(f"{lay!r}{'*' if want else ''}" for lay, want in zip(self.layouts, self.wants, strict=True))
        return f"{self.sample} on {self.dims}: {shown}"


@dataclass
class Computed:
    """On one rank, or on one device; gradients are those of the operands, None where none is wanted."""

    results: list[Tensor]
    inputs: list[Tensor]

    def gradients(self, seeds: Sequence[Tensor]) -> list[Tensor | None]:
        """Of the inputs, for these gradients of the results; zeros where an input has no part in them."""
        roots = [(result, seed) for result, seed in zip(self.results, seeds, strict=True) if result.requires_grad]
        wanted = [x for x in self.inputs if x.requires_grad]
        if not roots or not wanted:
            return [None] * len(self.inputs)
        outputs, grads = zip(*roots, strict=True)
        found = iter(torch.autograd.grad(outputs, wanted, grads, retain_graph=True, allow_unused=True))
        return [next(found) if x.requires_grad else None for x in self.inputs]


def judged(case: Case) -> Verdict:
    """Errors: `Lie`."""
    expected = one_device(case.sample, case.wants, tuple(V in layout.values() for layout in case.layouts))
    ranks = range(case.dims.world)
    try:
        checked = [_checked(case, rank, expected) for rank in ranks]
    except SpmdTypeError:
        return Verdict.NEEDLESS if _some_layout_denotes(case, expected) else Verdict.REFUSED
    except Exception as error:
        raise Lie(f"{case}: {type(error).__name__}: {error}") from error
    tags = checked[0][1]
    if any(
        [(tag.layout, tag.factors) for tag in other[1]] != [(tag.layout, tag.factors) for tag in tags]
        for other in checked
    ):
        raise Lie(f"{case}: ranks disagree on the type")
    if len(tags) != len(expected.results):
        raise Lie(f"{case}: {len(tags)} results, not {len(expected.results)}")
    near = tolerance([*expected.results, *expected.inputs])
    for place, (tag, result) in enumerate(zip(tags, expected.results, strict=True)):
        if not denotes(tag, [one[0].results[place].detach() for one in checked], result.detach(), case.dims, near):
            raise Lie(f"{case}: result {place} is not {tag.layout}")
    _demand_gradients(case, expected, [one[2] for one in checked], near)
    return Verdict.ACCEPTED


def accepted(case: Case) -> bool:
    """Whether the checker accepts the call on the first rank; gradients are not asked for.

    An error of another class is not told here, but where the case is judged.
    """
    try:
        with set_current_mesh(view(case.dims, 0)), typecheck():
            case.sample.run(*_inputs(case, 0))
    except Exception:
        return False
    return True


@lru_cache(maxsize=64)
def one_device(sample: Sample, wants: tuple[bool, ...], lists: tuple[bool, ...]) -> Computed:
    """On the whole tensors; where one is a list, for each entry of it."""
    inputs = [whole.clone().requires_grad_(want) for whole, want in zip(_wholes(sample, lists), wants, strict=True)]
    if not any(lists):
        return Computed(listed(sample.run(*inputs)), inputs)
    entries = [
        listed(sample.run(*(x[entry] if several else x for x, several in zip(inputs, lists, strict=True))))
        for entry in range(2)
    ]
    return Computed([torch.stack(column) for column in zip(*entries, strict=True)], inputs)


@lru_cache(maxsize=64)
def _wholes(sample: Sample, lists: tuple[bool, ...]) -> tuple[Tensor, ...]:
    return tuple(
        given.whole(place, 2 if several else 0)
        for place, (given, several) in enumerate(zip(sample.inputs, lists, strict=True))
    )


def listed(value: Any) -> list[Tensor]:
    """The tensors that a call returned."""
    return [value] if isinstance(value, Tensor) else list(value)


def _inputs(case: Case, rank: int) -> list[Tensor]:
    lists = tuple(V in layout.values() for layout in case.layouts)
    found = []
    for seed, whole in enumerate(_wholes(case.sample, lists)):
        layout = case.layouts[seed]
        x = held(layout, whole, case.dims, rank, seed).requires_grad_(case.wants[seed])
        found.append(assert_type(x, layout))
    return found


def _checked(case: Case, rank: int, expected: Computed) -> tuple[Computed, tuple[Tag, ...], list[Tensor | None]]:
    axes = set(case.layouts[0])
    with set_current_mesh(view(case.dims, rank)), typecheck():
        inputs = _inputs(case, rank)
        computed = Computed(listed(case.sample.run(*inputs)), inputs)
        tags = tuple(read(result) for result in computed.results)
        if any(set(tag.layout) != axes for tag in tags):
            raise Lie(f"{case}: a result without a type on every axis: {[tag.layout for tag in tags]}")
    return computed, tags, computed.gradients(_seeds(case, rank, expected, tags))


def _seeds(case: Case, rank: int, expected: Computed, tags: Sequence[Tag]) -> list[Tensor]:
    return [
        held(tag.layout.dual, whole, case.dims, rank, factors=tag.factors)
        if whole.is_floating_point() or whole.is_complex()
        else whole
        for tag, whole in zip(tags, _whole_seeds(expected), strict=True)
    ]


def _whole_seeds(expected: Computed) -> list[Tensor]:
    return [values(result.shape, result.dtype, 50 + place) for place, result in enumerate(expected.results)]


def _demand_gradients(case: Case, expected: Computed, found: Sequence[list[Tensor | None]], near: float) -> None:
    for place, gradient in enumerate(expected.gradients(_whole_seeds(expected))):
        parts = [rank[place] for rank in found]
        if gradient is None:
            continue
        zeros = torch.zeros_like(held(case.layouts[place], expected.inputs[place].detach(), case.dims, 0))
        given = [zeros if part is None else part for part in parts]
        if not denotes(typed(case.layouts[place].dual), given, gradient, case.dims, near):
            raise Lie(f"{case}: the gradient of operand {place} is not {case.layouts[place].dual}")


def _some_layout_denotes(case: Case, expected: Computed) -> bool:
    ranks = range(case.dims.world)
    try:
        with set_current_mesh(view(case.dims, 0)):
            computed = []
            for rank in ranks:
                inputs = _inputs(case, rank)
                computed.append(Computed(listed(case.sample.run(*inputs)), inputs))
    except Exception:
        return False  # what the ranks hold does not even fit together
    if any(len(one.results) != len(expected.results) for one in computed):
        return False
    near = tolerance([*expected.results, *expected.inputs])
    offered = []
    for place, result in enumerate(expected.results):
        parts = [rank.results[place].detach() for rank in computed]
        fits = [each for each in _candidates(case, result) if denotes(each, parts, result.detach(), case.dims, near)]
        offered.append(fits)
    return any(_gradients_denote(case, expected, computed, tags, near) for tags in itertools.product(*offered))


def _gradients_denote(
    case: Case, expected: Computed, computed: Sequence[Computed], tags: Sequence[Tag], near: float
) -> bool:
    try:
        found = [one.gradients(_seeds(case, rank, expected, tags)) for rank, one in enumerate(computed)]
        _demand_gradients(case, expected, found, near)
    except (Lie, RuntimeError):
        return False
    return True


def _candidates(case: Case, result: Tensor) -> Iterator[Tag]:
    """Every type that a result might have."""
    axes = tuple(case.layouts[0])
    lists = any(V in layout.values() for layout in case.layouts)
    dims = result.dim() - lists
    alike: list[SpmdType] = [R, I] if result.requires_grad else [R]
    sums: list[SpmdType] = [P] if result.dtype is not torch.bool else []
    kinds: list[SpmdType] = [V] if lists else [*alike, *sums, *(S(dim) for dim in range(dims))]
    for order in itertools.permutations(axes):
        for chosen in itertools.product(kinds, repeat=len(axes)):
            yield typed(SpmdLayout(dict(zip(order, chosen, strict=True))))

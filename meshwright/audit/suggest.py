"""Which other declaration would be right: found by trying each on shapes, not by guessing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from meshwright.audit.call import Call
from meshwright.check import no_typecheck
from meshwright.check.operand import whole_shape
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, SpmdType
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition

if TYPE_CHECKING:
    from meshwright.audit.boundary import Boundary
    from meshwright.backends.declared import Declared


class Suggestion(NamedTuple):
    """field: of the declaration; declared: what stands there; fix: what would be right."""

    field: str
    declared: SpmdLayout
    fix: str


def state(boundary: Boundary, call: Call) -> Suggestion | None:
    """The state whose layout, changed on one axis, lets forward compute what is declared; None where there is none."""
    if boundary.config.local_map is not None:
        return None
    for name, declared in boundary.config.state_shardings.items():
        if isinstance(declared, Transition):
            continue
        raw, field = SpmdLayout(declared), f"state_shardings[{name!r}]"
        for other, kind in _others(raw, getattr(boundary.module, name).dim(), boundary.audit):
            if _computes(boundary, call, name, other):
                fix = shown(other) if kind is not P else f"Transition({shown(raw)}, {shown(other)})"
                return Suggestion(field, raw, f"{field} = {fix}")
    return None


def entering(boundary: Boundary, call: Call) -> Suggestion | None:
    """The argument that is to enter forward with another layout than it does; None where there is none."""
    audit, config = boundary.audit, boundary.config
    if config.local_map is not None:
        return None
    for name, change in boundary.contract.inputs.items():
        x = call[name]
        declared = (config.in_dst_shardings or {}).get(name, (config.in_src_shardings or {}).get(name))
        if not isinstance(x, Tensor) or declared is None:
            continue
        raw, seen = SpmdLayout(declared), boundary.passed.inputs[name]
        for other, _ in _others(raw, x.dim(), audit):
            active = other.only(change.src.__contains__)
            if not _divides(seen.shape, active, audit) or not _leads(change.src, active):
                continue
            with audit.aside():
                call[name] = boundary.empty(seen, active)
                right = _right(boundary, call)
                call[name] = x
            if right:
                field = f"in_dst_shardings[{name!r}]"
                return Suggestion(field, raw, f"{field} = {shown(other)}")
    return None


def _others(raw: SpmdLayout, dims: int, audit: Declared) -> Iterator[tuple[SpmdLayout, SpmdType]]:
    """The layouts that differ from `raw` on one axis that is on, and the type there."""
    for axis, held in raw.items():
        if axis in audit.dims.active(audit.axes):
            for kind in (*(S(dim) for dim in range(dims)), I, R, P):
                if kind is not held:
                    yield changed(raw, axis, kind), kind


def _leads(src: SpmdLayout, dst: SpmdLayout) -> bool:
    try:
        return bool(Transition(src, dst).steps)
    except SpmdTypeError:
        return False


def _divides(shape: tuple[int, ...], layout: SpmdLayout, audit: Declared) -> bool:
    return all(
        length % math.prod(audit.view[axis].size for axis in layout.sharding(dim)) == 0
        for dim, length in enumerate(shape)
    )


def takes(boundary: Boundary, call: Call, change: Transition) -> bool:
    """Whether the module computes what it declares from its arguments as they arrive."""
    if not boundary.is_leaf or boundary.config.local_map is not None or change.src is not change.dst:
        return False
    return _right(boundary, call)


def _computes(boundary: Boundary, call: Call, name: str, raw: SpmdLayout) -> bool:
    audit, module = boundary.audit, boundary.module
    active = audit.dims.active(audit.axes)
    layout = raw.only(active.__contains__)
    value: Tensor = getattr(module, name)
    with no_typecheck():
        shape = whole_shape(tuple(value.shape), boundary.contract.states[name].src, audit.view)
        if not _divides(shape, layout, audit):
            return False
        local = audit.on(layout).local_shape(shape, audit.stated.degree, audit.stated.index)
        trial = torch.empty(local, dtype=value.dtype, device="meta", requires_grad=value.requires_grad)
    with audit.aside():
        return _right(boundary, call, {name: audit.states(trial, layout)})


def _right(boundary: Boundary, call: Call, states: Mapping[str, Tensor] | None = None) -> bool:
    """Whether forward computes what is declared, with `states` in place of its own."""
    declared, seen = boundary.contract.outputs, boundary.passed.outputs
    if not isinstance(declared, Transition):
        return False
    audit = boundary.audit
    try:
        with audit.aside(), boundary.holding({**boundary.held, **(states or {})}):
            result = audit.states(call.run(), declared.src)
    except Exception:  # whatever it is, this is no layout with which forward runs
        return False
    return tuple(result.shape) == seen.part(audit.on(declared.src), audit.stated)


def changed(layout: SpmdLayout, axis: str, kind: SpmdType) -> SpmdLayout:
    """The same with another type on one axis, which keeps its place in the order."""
    return SpmdLayout({name: kind if name == axis else held for name, held in layout.items()})


def as_found(audit: Declared, raw: SpmdLayout, found: Mapping[str, SpmdType]) -> SpmdLayout:
    """A declared layout with the types of `found`, which is on the stated axes."""

    def kinds() -> Iterator[tuple[str, SpmdType]]:
        for name, kind in raw.items():
            stated = [axis for axis in audit.on({name: kind}) if axis in found]
            yield name, found[stated[0]] if stated else kind

    return SpmdLayout(dict(kinds()))


def shown(layout: Mapping[str, SpmdType]) -> str:
    """A layout as it is written in a recipe."""
    return "{" + ", ".join(f'"{axis}": {kind!r}' for axis, kind in layout.items()) + "}"

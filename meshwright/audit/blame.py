"""Who is to blame for what does not fit, and what would be right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from torch import Tensor

from meshwright.audit import region, suggest, where
from meshwright.audit.call import Call
from meshwright.audit.whole import Seen
from meshwright.check import layout_of
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import P, SpmdType
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition

if TYPE_CHECKING:
    from meshwright.audit.boundary import Boundary

_ORIGIN: Final = "_meshwright_origin"


@dataclass(frozen=True)
class Origin:
    """Where a tensor comes from. layout: as the module declares what it hands on."""

    path: str
    layout: SpmdLayout


def origin_of(x: Tensor) -> Origin | None:
    """The module that handed `x` on, if it declares what it hands on."""
    return x.__dict__.get(_ORIGIN)


def note_origin(x: Tensor, origin: Origin) -> None:
    """Note which module hands `x` on."""
    x.__dict__[_ORIGIN] = origin


def forward(boundary: Boundary, call: Call, error: SpmdTypeError) -> None:
    """Tell that a module's forward is refused: because of a state, of an argument, or at a line."""
    problem = error.problems[0]
    found = (suggest.state(boundary, call) or suggest.entering(boundary, call)) if boundary.is_leaf else None
    if found is None:
        boundary.audit.tell(replace(problem, where=f"{boundary.path}.forward: {where.of_error(error)}"))
        return
    what = f"{found.declared}: {problem.what}"
    boundary.audit.tell(replace(problem, where=boundary.field(found.field), what=what, fix=found.fix))


def output(
    boundary: Boundary, change: Transition, seen: Seen, value: Tensor, call: Call, error: SpmdTypeError
) -> Tensor:
    """Tell that what forward computes is not what is declared; the tensor to go on with."""
    problem = error.problems[0]
    found = suggest.state(boundary, call) if boundary.is_leaf else None
    if found is not None:
        what = f"{found.declared}: the output is {_shown(value)}, and declared {change.src}"
        boundary.audit.tell(
            replace(problem, where=boundary.field(found.field), what=what, why=_COUNTED_ON, fix=found.fix)
        )
        return boundary.empty(seen, change.dst)
    raw = boundary.config.out_src_shardings
    actual = suggest.as_found(boundary.audit, raw, layout_of(value)) if isinstance(raw, SpmdLayout) else None
    fix, goes_on = "", boundary.empty(seen, change.dst)
    if actual is not None:
        fix = f"out_src_shardings = {suggest.shown(actual)}"
        if change.src is change.dst and P in layout_of(value).values():
            fix += f", out_dst_shardings = {suggest.shown(raw)}"
        elif change.src is change.dst:
            goes_on = boundary.empty(seen, actual.only(change.src.__contains__))
    field, what = "out_src_shardings", f"declared {change.src}, but forward computes {_shown(value)}"
    if boundary.config.local_map is not None:
        field, what = "local_map", f"out_src_shardings is {change.src}, but the region computes {_shown(value)}"
        fix = region.unseen_sums(boundary, layout_of(value), change.src) or fix
    boundary.audit.tell(replace(problem, where=boundary.field(field), what=what, why=_COUNTED_ON, fix=fix))
    return goes_on


def arrival(boundary: Boundary, name: str, call: Call, change: Transition, error: SpmdTypeError) -> bool:
    """Tell that what arrives is not what is declared. True where the module computes what it declares from that too:
    its declaration alone is to blame, and the argument stays as it is.
    """
    x = call[name]
    problem, arrives = error.problems[0], layout_of(x)
    raw = SpmdLayout((boundary.config.in_src_shardings or {})[name])
    taken = suggest.takes(boundary, call, change)
    source = None if taken else _source(boundary, x, arrives)
    kind = type(boundary.module).__name__
    if source is not None:
        field, declared = source
        wanted = suggest.as_found(boundary.audit, declared, boundary.audit.on(change.src))
        what = f"{_shown(x)} is handed on, and {kind} takes {name} as {change.src}"
        fix = f"{field.rpartition('.')[2]} = {suggest.shown(wanted)}"
        boundary.audit.tell(replace(problem, where=field, what=what, why=_TAKEN, fix=fix))
        return taken
    what = f"declared {change.src}, but {_shown(x)} arrives"
    fix = f"in_src_shardings[{name!r}] = {suggest.shown(suggest.as_found(boundary.audit, raw, arrives))}"
    if not taken:
        fix += f"; or what hands it on is to hand on {suggest.shown(raw)}"
    at = boundary.field(f"in_src_shardings[{name!r}]")
    boundary.audit.tell(replace(problem, where=at, what=what, why=_TAKEN, fix=fix))
    return taken


def _source(boundary: Boundary, x: Tensor, arrives: Mapping[str, SpmdType]) -> tuple[str, SpmdLayout] | None:
    """The field that says how `x` was handed on, and what it says: of the module around this one, through which
    `x` came in; or of one that left it a sum over ranks."""
    if boundary.audit.at:
        around, call = boundary.audit.at[-1], boundary.audit.calls[-1]
        for name, given in call.tensors():
            if given is x and name in around.contract.inputs:
                config = around.config
                raw = (config.in_dst_shardings or {}).get(name, (config.in_src_shardings or {}).get(name))
                if raw is not None:
                    return around.field(f"in_dst_shardings[{name!r}]"), SpmdLayout(raw)
    origin = origin_of(x)
    if origin is not None and P in arrives.values():
        return f"{origin.path}.sharding_config.out_dst_shardings", origin.layout
    return None


def _shown(x: Tensor) -> str:
    return str(SpmdLayout(layout_of(x)))


_TAKEN: Final = "a module computes what it declares from what it declares to take, and from nothing else"
_COUNTED_ON: Final = "what follows counts on what is declared"

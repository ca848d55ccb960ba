"""A module whose forward runs on local tensors: what its declaration says of outputs and gradients is judged.

Inside, the checker follows R, I, V and P, and which dim is cut as long as every op keeps it. Of the rest the region's
declaration says what it is; that is noted as taken on trust.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from torch import Tensor

from meshwright.audit import suggest
from meshwright.audit.call import Call
from meshwright.check import layout_of, local
from meshwright.comm.collectives import reinterpret
from meshwright.comm.scope import set_current_mesh
from meshwright.core.sharding import LocalMapConfig
from meshwright.errors import Problem
from meshwright.types.kinds import P, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout

if TYPE_CHECKING:
    from meshwright.audit.boundary import Boundary


def demand_gradients(boundary: Boundary, region: LocalMapConfig, call: Call) -> None:
    """Tell of inputs that want a gradient of which the declaration says that they have none."""
    for name, declared in region.in_grad_shardings.items():
        x = call[name]
        if declared is None and isinstance(x, Tensor) and x.requires_grad:
            boundary.audit.tell(
                Problem(
                    where=boundary.field(f"local_map.in_grad_shardings[{name!r}]"),
                    what=f"declared None, but {name} arrives with a gradient wanted of it",
                    why="what a region hands back for an input is declared: where R meets S it is P",
                    fix=f"{name!r}: {suggest.shown(SpmdLayout(boundary.config.enters[name]).dual)}",
                )
            )


@contextmanager
def inside(boundary: Boundary) -> Iterator[None]:
    """What the body of a region runs in; nothing changes where the module is none."""
    declared, sparse = boundary.config.local_map, boundary.audit.sparse
    if declared is None:
        yield
        return
    with local(), set_current_mesh(sparse) if declared.mesh == "sparse" and sparse else nullcontext():
        yield


def leaves(boundary: Boundary, value: Tensor, declared: SpmdLayout) -> Tensor:
    """What the body computed, with what its declaration claims; of shards that no rule sees and nobody claims it tells.

    Errors: as of `reinterpret`, where a claim cannot be.
    """
    known, claimed = layout_of(value), reasons(boundary)
    for axis, kind in boundary.audit.on(declared).items():
        if known.get(axis) is not V:
            continue
        if kind is P and axis in claimed:
            value = reinterpret(value, axis, src=V, dst=P)
        elif isinstance(kind, Shard) and axis not in claimed:
            boundary.audit.tell(
                Problem(
                    where=boundary.field("out_src_shardings"),
                    what=f"{kind!r} on {axis!r}, and what forward computes is V there",
                    why="which part of the whole each rank has no rule sees any more",
                    fix=f'local_map.claims = {{"{axis}": "why what a rank computes is its part"}}, if it is',
                )
            )
    return value


def reasons(boundary: Boundary) -> dict[str, str]:
    """Axis, of those on which types are stated, -> why what is claimed there is right."""
    region = boundary.config.local_map
    claims = region.claims if region is not None else {}
    return {axis: why for name, why in claims.items() for axis in boundary.audit.on({name: P})}


def unseen_sums(boundary: Boundary, found: Mapping[str, SpmdType], declared: SpmdLayout) -> str:
    """What to write where the body computes V, and P is declared; "" where that is not what is wrong."""
    known = boundary.audit.on(declared)
    axes = [
        axis for axis in declared if any(known[on] is P and found.get(on) is V for on in boundary.audit.on({axis: P}))
    ]
    if not axes:
        return ""
    claims = ", ".join(f'"{axis}": "why what each rank computes is its part of the sum"' for axis in axes)
    return f"local_map.claims = {{{claims}}}, if it is; no rule sees it"

"""The type system alone, for any program on plain tensors: `import meshwright.spmd as spmd`.

    with spmd.set_current_mesh(view), spmd.typecheck():
        x = spmd.assert_type(x, {spmd.TP: spmd.S(1)})
        x = spmd.redistribute(x, spmd.TP, src=spmd.S(1), dst=spmd.R)

Without `typecheck` the program runs on plain tensors, and `assert_type` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshwright.comm.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    convert,
    redistribute,
    reduce_scatter,
    reinterpret,
)
from meshwright.comm.declare import assert_type
from meshwright.comm.scope import axis_index, axis_size, current_mesh, set_current_mesh
from meshwright.errors import SpmdTypeError
from meshwright.types.axes import CP, DP, DP_REPLICATE, DP_SHARD, EFSDP, EP, PP, TP, TP_COPY, TP_KV
from meshwright.types.kinds import I, P, R, S, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition, plan
from meshwright.types.transition import Step, step

if TYPE_CHECKING:
    from meshwright.check import is_type_checking, layout_of, no_typecheck, typecheck

__all__ = [
    "CP",
    "DP",
    "DP_REPLICATE",
    "DP_SHARD",
    "EFSDP",
    "EP",
    "PP",
    "TP",
    "TP_COPY",
    "TP_KV",
    "I",
    "P",
    "R",
    "S",
    "Shard",
    "SpmdLayout",
    "SpmdType",
    "SpmdTypeError",
    "Step",
    "Transition",
    "V",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "assert_type",
    "axis_index",
    "axis_size",
    "convert",
    "current_mesh",
    "is_type_checking",
    "layout_of",
    "no_typecheck",
    "plan",
    "redistribute",
    "reduce_scatter",
    "reinterpret",
    "set_current_mesh",
    "step",
    "typecheck",
]

_OF_THE_CHECKER = ("is_type_checking", "layout_of", "no_typecheck", "typecheck")


def __getattr__(name: str) -> Any:
    """The checker is imported when it is first asked for: a program that runs unchecked never loads it."""
    if name in _OF_THE_CHECKER:
        import meshwright.check as check

        return getattr(check, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The type system alone, for any program on plain tensors: `import meshwright.spmd as spmd`.

    with spmd.set_current_mesh(spmd.mesh(dp=2, tp=4)), spmd.typecheck():
        x = spmd.assert_type(x, {"dp": spmd.S(0), "tp": spmd.S(1)})
        x = spmd.redistribute(x, "tp", src=spmd.S(1), dst=spmd.R)

Without `typecheck` the program runs on plain tensors, and `assert_type` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshwright.comm.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    convert,
    invariant_to_replicate,
    redistribute,
    reduce_scatter,
    reinterpret,
    shard,
    unshard,
)
from meshwright.comm.declare import assert_local_type, assert_type, assert_type_like, merge_types
from meshwright.comm.mesh_axis import MeshAxis
from meshwright.comm.scope import axis_index, axis_size, current_mesh, set_current_mesh, size
from meshwright.comm.shapes import mesh
from meshwright.comm.view import View
from meshwright.errors import SpmdTypeError
from meshwright.types.axes import CP, DP, DP_REPLICATE, DP_SHARD, EFSDP, EP, PP, TP, TP_COPY, TP_KV
from meshwright.types.kinds import I, P, R, S, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.partition import PartitionSpec
from meshwright.types.planner import Plan, Transition, plan
from meshwright.types.transition import Step, step

if TYPE_CHECKING:
    from meshwright.check import (
        Infer,
        Report,
        check,
        get_axis_local_type,
        get_local_type,
        get_partition_spec,
        has_local_type,
        is_type_checking,
        layout_of,
        local,
        local_map,
        mutate_type,
        no_typecheck,
        register_autograd_function,
        reinterpret_mesh,
        reinterpret_no_grad,
        show,
        typecheck,
    )

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
    "Infer",
    "MeshAxis",
    "P",
    "PartitionSpec",
    "Plan",
    "R",
    "Report",
    "S",
    "Shard",
    "SpmdLayout",
    "SpmdType",
    "SpmdTypeError",
    "Step",
    "Transition",
    "V",
    "View",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "assert_local_type",
    "assert_type",
    "assert_type_like",
    "axis_index",
    "axis_size",
    "check",
    "convert",
    "current_mesh",
    "get_axis_local_type",
    "get_local_type",
    "get_partition_spec",
    "has_local_type",
    "invariant_to_replicate",
    "is_type_checking",
    "layout_of",
    "local",
    "local_map",
    "merge_types",
    "mesh",
    "mutate_type",
    "no_typecheck",
    "plan",
    "redistribute",
    "reduce_scatter",
    "register_autograd_function",
    "reinterpret",
    "reinterpret_mesh",
    "reinterpret_no_grad",
    "set_current_mesh",
    "shard",
    "show",
    "size",
    "step",
    "typecheck",
    "unshard",
]

_OF_THE_CHECKER: Final = (
    *("Infer", "Report", "check", "get_axis_local_type", "get_local_type", "get_partition_spec", "has_local_type"),
    *("is_type_checking", "layout_of", "local", "local_map", "mutate_type", "no_typecheck"),
    *("register_autograd_function", "reinterpret_mesh", "reinterpret_no_grad", "show", "typecheck"),
)

if not TYPE_CHECKING:  # or a name that is written wrong would have a type

    def __getattr__(name: str) -> Any:
        """The checker is imported when it is first asked for: a program that runs unchecked never loads it."""
        if name in _OF_THE_CHECKER:
            import meshwright.check as checker

            return getattr(checker, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

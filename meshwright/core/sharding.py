"""`ShardingConfig`: what a module declares of its states, inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from meshwright.core.tree import map_tree
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import SpmdType
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition

Layout = Mapping[str, SpmdType]
"""`SpmdLayout`, or a plain dict {axis: type} that becomes one."""


@dataclass(kw_only=True)
class LocalMapConfig:
    """The module's forward runs on local tensors: inside, shards are lists that vary by rank.

    in_grad_shardings: layout of each input's gradient as the region hands it back; None for an input without
        gradient. There is no default: where R meets sharded operands inside, the gradient is P, and only the author
        knows that they meet.
    claims: axis on which ranks compute what no rule follows -> why it is the P or S(dim) that is declared: as of rows
        that are looked up on the rank that has them, zeros elsewhere. `meshwright check` lists it as taken on trust.
    mesh: the axes of the region. "sparse": those of experts, efsdp and ep, which are the same ranks; what comes from
        the dense axes is read on them, and back at the end.
    """

    in_grad_shardings: Mapping[str, Layout | None]
    claims: Mapping[str, str] = field(default_factory=dict)
    mesh: Literal["dense", "sparse"] = "dense"

    def __post_init__(self) -> None:
        self.in_grad_shardings = {
            name: None if layout is None else SpmdLayout(layout) for name, layout in self.in_grad_shardings.items()
        }


@dataclass(kw_only=True)
class ShardingConfig:
    """The contract of a module. Layouts name every axis; those that are off in a run are left out then.

    state_shardings: parameter or buffer -> its layout; a `Transition` where forward sees another layout than the
        optimizer, as a bias that is added to a partial sum: `Transition({"tp": I}, {"tp": P})`.
    in_src_shardings, in_dst_shardings: argument of forward -> the layout it arrives with, and the one forward wants.
    out_src_shardings, out_dst_shardings: the layout that forward computes, and the one handed on; a tree of layouts
        where the output is one, with None for what is no tensor of the mesh.
    local_map: set where forward runs on local tensors.
    """

    state_shardings: Mapping[str, Layout | Transition] = field(default_factory=dict)
    in_src_shardings: Mapping[str, Layout] | None = None
    in_dst_shardings: Mapping[str, Layout] | None = None
    out_src_shardings: Any = None
    out_dst_shardings: Any = None
    local_map: LocalMapConfig | None = None

    def __post_init__(self) -> None:
        self.state_shardings = {
            name: layout if isinstance(layout, Transition) else SpmdLayout(layout)
            for name, layout in self.state_shardings.items()
        }
        if self.in_src_shardings is not None:
            self.in_src_shardings = _named(self.in_src_shardings)
        if self.in_dst_shardings is not None:
            self.in_dst_shardings = _named(self.in_dst_shardings)
        self.out_src_shardings = map_tree(_layout, self.out_src_shardings)
        self.out_dst_shardings = map_tree(_layout, self.out_dst_shardings)

    @property
    def enters(self) -> dict[str, Layout]:
        """Argument of forward -> its layout as forward sees it."""
        return {**(self.in_src_shardings or {}), **(self.in_dst_shardings or {})}


def _layout(declared: Layout | None) -> SpmdLayout | None:
    return None if declared is None else SpmdLayout(declared)


def _named(layouts: Mapping[str, Layout]) -> dict[str, SpmdLayout]:
    """Errors: `SpmdTypeError` for what is not {name: {axis: type}}."""
    if not isinstance(layouts, Mapping) or isinstance(layouts, SpmdLayout):
        raise SpmdTypeError(
            Problem(
                where="in_shardings", what=f"{layouts!r} names no argument", fix='{"x": {axis: type}}: a layout by name'
            )
        )
    return {name: SpmdLayout(layout) for name, layout in layouts.items()}

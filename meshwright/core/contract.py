"""The contract of a module: its declaration compiled against `forward` and the axes that are on.

All that is wrong with it is found here, together, before anything runs.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn

from meshwright.comm.grid import DENSE, Axes, ParallelismDims, lower, unknown_axis
from meshwright.core.sharding import ShardingConfig
from meshwright.core.tree import Unlike, describe, is_leaf, map_tree
from meshwright.errors import Problem, SpmdTypeError, nearest
from meshwright.types.axes import CP, DP, TP
from meshwright.types.kinds import P, Shard, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition


@dataclass(frozen=True)
class Contract:
    """Declared layouts on the axes of this run.

    states: name -> at rest to in compute. inputs: argument -> as it arrives to as forward wants it.
    outputs: tree of as computed to as handed on; None where nothing is declared.
    region: where forward runs on local tensors, input -> the layout of its gradient as the region hands it back, None
        for one without gradient. None: forward is no region.
    """

    states: Mapping[str, Transition]
    inputs: Mapping[str, Transition]
    outputs: Any
    region: Mapping[str, SpmdLayout | None] | None = None


def arguments(module: nn.Module) -> dict[str, int | None]:
    """The names that the class's `forward` takes, without self -> the place that each has among positional arguments,
    None if it has none. `*args` and `**kwargs` name no tensor: they are left out."""
    taken = list(inspect.signature(type(module).forward).parameters.values())[1:]
    found = {param.name: place for place, param in enumerate(taken) if param.kind in _POSITIONAL}
    return {**found, **{param.name: None for param in taken if param.kind is param.KEYWORD_ONLY}}


_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The module's own parameters, without those of its children; one that is tied to another under both names."""
    return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def own_buffers(module: nn.Module) -> dict[str, Tensor]:
    """As `own_parameters`."""
    return dict(module.named_buffers(recurse=False, remove_duplicate=False))


def own_states(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """The module's own parameters and buffers -> shape."""
    return {name: tuple(state.shape) for name, state in (own_parameters(module) | own_buffers(module)).items()}


def compile_contract(
    module: nn.Module, config: ShardingConfig, path: str, dims: ParallelismDims, axes: Axes
) -> tuple[Contract, list[Problem]]:
    """The contract of `module` (global shapes, on meta) on the axes that are on, and all that is wrong with it."""
    return _Compiler(module, config, path, dims, axes).compile()


class _Compiler:
    def __init__(self, module: nn.Module, config: ShardingConfig, path: str, dims: ParallelismDims, axes: Axes) -> None:
        self.module, self.config, self.path, self.dims, self.axes = module, config, path, dims, axes
        self.degrees = dims.degrees(axes)
        self.active = dims.active(axes)
        self.problems: list[Problem] = []

    def compile(self) -> tuple[Contract, list[Problem]]:
        inputs = self.inputs()
        return Contract(self.states(), inputs, self.outputs(), self.region(inputs)), self.problems

    def states(self) -> dict[str, Transition]:
        shapes = own_states(self.module)
        found = {}
        for name, declared in self.config.state_shardings.items():
            field = f"state_shardings[{name!r}]"
            if self.known(name, tuple(shapes), field, "state"):
                rest, compute = (
                    (declared.src, declared.dst) if isinstance(declared, Transition) else (declared, declared)
                )
                found[name] = self.transition(rest, field, compute, field)
                for layout in dict.fromkeys((found[name].src, found[name].dst)):
                    self.divides(shapes[name], layout, field)
                if name in own_parameters(self.module):
                    self.holds(found[name].src, field)
        for name in sorted(set(shapes) - set(self.config.state_shardings)):
            self.say(
                f"state_shardings[{name!r}]",
                f"the state {name!r} {list(shapes[name])} has no layout",
                "a module that declares a sharding declares it for all of its parameters and buffers",
                "R on every axis, if all ranks hold it whole",
            )
        return found

    def inputs(self) -> dict[str, Transition]:
        sources, targets = self.config.in_src_shardings or {}, self.config.in_dst_shardings or {}
        found = {}
        for name in dict.fromkeys((*sources, *targets)):
            src, dst = f"in_src_shardings[{name!r}]", f"in_dst_shardings[{name!r}]"
            if not self.known(name, tuple(arguments(self.module)), src if name in sources else dst, "argument"):
                continue
            default = inspect.signature(type(self.module).forward).parameters[name].default
            if isinstance(default, Tensor):
                self.say(
                    src,
                    f"{name!r} has a tensor as its default",
                    "what is not passed does not cross the boundary",
                    f"{name}: Tensor | None = None, and make it inside forward",
                )
            if name in sources:
                found[name] = self.transition(sources[name], src, targets.get(name, sources[name]), dst)
            else:
                self.both(dst, src, "arrives with")
        return found

    def outputs(self) -> Any:
        src, dst = self.config.out_src_shardings, self.config.out_dst_shardings
        if src is None and dst is not None:
            self.both("out_dst_shardings", "out_src_shardings", "is computed with")
            return None
        try:
            return map_tree(self.output, src, src if dst is None else dst)
        except Unlike as error:
            self.say(
                "out_dst_shardings",
                f"not built like out_src_shardings: {error}",
                "each output has one layout on either side",
                "the same tuples and dicts in both",
            )
            return None

    def output(self, src: SpmdLayout | None, dst: Any) -> Transition | None:
        """One output; None in `dst` hands it on as it is computed."""
        if not is_leaf(dst):
            raise Unlike(f"declared as {describe(src)}, but it is {describe(dst)}")
        if src is None:
            if dst is not None:
                self.both("out_dst_shardings", "out_src_shardings", "is computed with")
            return None
        return self.transition(src, "out_src_shardings", src if dst is None else dst, "out_dst_shardings")

    def region(self, inputs: Mapping[str, Transition]) -> dict[str, SpmdLayout | None] | None:
        if self.config.local_map is None:
            return None
        self.claims(self.config.local_map.claims)
        self.meets(self.config.local_map.mesh)
        gradients = self.config.local_map.in_grad_shardings
        found: dict[str, SpmdLayout | None] = {}
        for name, declared in gradients.items():
            field = f"local_map.in_grad_shardings[{name!r}]"
            if not self.known(name, tuple(inputs), field, "declared input"):
                continue
            found[name] = None
            if declared is None:
                continue
            gradient, wanted = self.layout(SpmdLayout(declared), field), inputs[name].dst.dual
            found[name] = gradient
            if gradient is not wanted:
                self.say(
                    field,
                    f"{gradient}, but the input enters as {inputs[name].dst}",
                    "the gradient of R is P and of P is R; I, V and S(i) keep their type",
                    f"{wanted}, or another in_dst_shardings[{name!r}]",
                )
        for name in sorted(set(inputs) - set(gradients)):
            enters = inputs[name].dst
            self.say(
                f"local_map.in_grad_shardings[{name!r}]",
                f"no gradient layout for {name!r}, which enters as {enters}",
                "where R meets S inside a region the gradient is P; nothing is assumed for the author",
                f"{name!r}: {enters.dual}, or None if it has no gradient",
            )
        return found

    def meets(self, mesh: str) -> None:
        """A region runs on the axes on which its states lie."""
        for name, declared in self.config.state_shardings.items():
            layout = declared.dst if isinstance(declared, Transition) else declared
            if self.dims.ep > 1 and mesh == "dense" and self.dims.view_of(layout) is not DENSE:
                self.say(
                    "local_map.mesh",
                    f"the region runs on the axes {', '.join(map(repr, (DP, CP, TP)))}, and its state {name!r} is"
                    f" {SpmdLayout(layout)}",
                    "tokens meet experts on the axes of experts: the ranks are the same, and 'ep' is one of those",
                    'local_map = LocalMapConfig(..., mesh="sparse")',
                )
                return

    def claims(self, claims: Mapping[str, str]) -> None:
        for axis, reason in claims.items():
            field = f"local_map.claims[{axis!r}]"
            if axis not in self.axes:
                problem = unknown_axis(axis, tuple(self.axes))
                self.say(field, _placed(problem), problem.why, problem.fix)
            elif not reason:
                self.say(
                    field,
                    "no reason is given",
                    "what no rule sees is taken on trust, and listed with its reason",
                    "why what each rank computes is what is declared",
                )

    def transition(self, src: Mapping[str, Any], src_field: str, dst: Mapping[str, Any], dst_field: str) -> Transition:
        source, target = SpmdLayout(src), SpmdLayout(dst)
        active = self.layout(source, src_field)
        change = Transition(active, active if target is source else self.layout(target, dst_field))
        try:
            _ = change.steps
        except SpmdTypeError as error:
            for problem in error.problems:
                self.say(dst_field, _placed(problem), problem.why, problem.fix)
        return change

    def layout(self, declared: SpmdLayout, field: str) -> SpmdLayout:
        """The declared layout on the axes that are on."""
        view = self.dims.view_of(declared)
        named: dict[str, str] = {}  # base axis -> the axis of the layout that covers it
        for axis in declared:
            if axis not in view:
                problem = unknown_axis(axis, tuple(view))
                self.say(field, _placed(problem), problem.why, problem.fix)
                continue
            for part in view[axis]:
                if part in named:
                    self.say(
                        field,
                        f"{named[part]!r} and {axis!r} are the same ranks",
                        "a tensor has one type on each axis",
                        f"leave out {named[part]!r} or {axis!r}",
                    )
                named[part] = axis
        degrees = self.dims.degrees(view)
        for axis, parts in view.items():
            if degrees[axis] > 1 and not any(part in named and self.dims.base[part] > 1 for part in parts):
                self.say(
                    field,
                    f"{declared} says nothing of {axis!r}, which has {degrees[axis]} ranks",
                    "a layout names every axis that is on",
                    f"{axis!r}: R, I, P or S(dim)",
                )
                named.update(dict.fromkeys(parts, axis))
        if view is not DENSE and self.dims.ep == 1:
            declared = self.dense(declared, field)
        return declared.only(lambda axis: axis in self.active)

    def dense(self, declared: SpmdLayout, field: str) -> SpmdLayout:
        """What is declared for experts, where ep is off, on the axes of all else."""
        base = lower(declared.only(self.dims.sparse().__contains__), self.dims.sparse())
        found = {}
        for axis in (DP, CP, TP):
            kinds = list(dict.fromkeys(base[part] for part in DENSE[axis] if self.dims.base[part] > 1 and part in base))
            if len(kinds) > 1:
                self.say(
                    field,
                    f"{declared} is {' and '.join(map(repr, kinds))} on parts of {axis!r}",
                    "where ep is off, experts lie on the axes of all else",
                    f"one type on {', '.join(map(repr, self.dims.sparse()))}, or --parallel.ep 2",
                )
            if kinds:
                found[axis] = kinds[0]
        return SpmdLayout(found)

    def holds(self, rest: SpmdLayout, field: str) -> None:
        """A parameter at rest is a value of its own, not a part of a sum and not one of a list."""
        for axis, kind in rest.items():
            if kind in (P, V):
                self.say(
                    field,
                    f"a parameter at rest is {kind!r} on {axis!r}",
                    "its first values, and the optimizer's, are of the whole parameter or of a shard of it",
                    f"Transition({{{axis!r}: R}}, {{{axis!r}: P}}), if forward wants a part of a sum"
                    if kind is P
                    else f"{axis!r}: R, I or S(dim)",
                )

    def divides(self, shape: tuple[int, ...], layout: SpmdLayout, field: str) -> None:
        """Every sharded dim of a state splits evenly."""
        for axis in layout.sharded:
            kind = layout[axis]
            assert isinstance(kind, Shard)
            if kind.dim >= len(shape):
                self.say(
                    field,
                    f"S({kind.dim}) on {axis!r}, but the state has {len(shape)} dims: {list(shape)}",
                    "dims are counted from 0",
                    f"S(dim) with dim below {len(shape)}" if shape else f"{axis!r}: R, a scalar has no dim to shard",
                )
            if kind.sizes is not None:
                self.say(field, f"{kind!r} on {axis!r} states the ranks' lengths", _EQUAL_PARTS, f"S({kind.dim})")
        for dim, length in enumerate(shape):
            over = layout.sharding(dim)
            parts = math.prod(self.degrees[axis] for axis in over)
            if length % parts:
                self.say(
                    field,
                    f"dim {dim} of {list(shape)} does not divide over {' x '.join(over)} = {parts} ranks",
                    _EQUAL_PARTS,
                    f"a length that is a multiple of {parts}, or fewer ranks on {' and '.join(over)}",
                    uneven=True,
                )

    def known(self, name: str, names: tuple[str, ...], field: str, what: str) -> bool:
        if name in names:
            return True
        kind = type(self.module).__name__
        self.say(
            field,
            f"{kind} has no {what} {name!r}{nearest(name, names)}",
            f"a contract names the {what}s of the module it stands on",
            f"one of {', '.join(map(repr, names))}" if names else f"{kind} has none: leave it out",
        )
        return False

    def both(self, given: str, missing: str, means: str) -> None:
        self.say(
            given,
            f"{missing} is not declared",
            "the types are erased in a run: the source cannot be read off the tensor",
            f"{missing} = the layout that the tensor {means}",
        )

    def say(self, field: str, what: str, why: str = "", fix: str = "", *, uneven: bool = False) -> None:
        where = f"{self.path}.sharding_config.{field}"
        self.problems.append(Problem(where=where, what=what, why=why, fix=fix, uneven=uneven))


_EQUAL_PARTS: Final = "every rank holds an equal part of a parameter or buffer"


def _placed(problem: Problem) -> str:
    """What was found, and on which axis, where the field says where."""
    return f"{problem.where}: {problem.what}" if problem.where else problem.what

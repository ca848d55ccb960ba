"""Each module is judged on its own: what arrives is what it declares, what it computes is what it declares.

After an error the declared layout is assumed, and the check goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn

from meshwright.audit import blame, region, where
from meshwright.audit.call import Call
from meshwright.audit.whole import Passed, Seen
from meshwright.check import layout_of
from meshwright.comm.declare import assert_type
from meshwright.core.contract import Contract
from meshwright.core.sharding import ShardingConfig
from meshwright.core.tree import Unlike, map_tree
from meshwright.errors import MeshwrightError, Problem, SpmdTypeError
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition

if TYPE_CHECKING:
    from meshwright.audit.audited import Audited


class Lost(Exception):
    """A module's output is not known, and what is wrong has been told."""


class Misshapen(Exception):
    """A tensor is not this rank's part of what one device computes."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem


class Boundary:
    """Stands for the forward of one module."""

    def __init__(self, audit: Audited, module: nn.Module, contract: Contract, path: str) -> None:
        self.audit, self.module, self.contract, self.path = audit, module, contract, path
        config = getattr(module, "config", None)
        self.config: ShardingConfig = getattr(config, "sharding_config", None) or ShardingConfig()
        self.is_leaf = not list(module.children())
        self.number = -1
        self.held: dict[str, Tensor] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        audit, call = self.audit, Call(self.module, args, kwargs)
        self.number += 1
        with audit.aside():
            for name, change in self.contract.inputs.items():
                if isinstance(call[name], Tensor):
                    call[name] = self._arrived(name, change, call)
            if self.config.local_map is not None:
                region.demand_gradients(self, self.config.local_map, call)
            self.held = self._in_compute()
        result = self._computed(call)
        with audit.aside(), audit.believing(self.path, region.reasons(self)):
            return self._handed_on(result, call)

    @property
    def passed(self) -> Passed:
        """The global shapes of what crosses in this call."""
        return self.audit.passed[self.path][self.number]

    def field(self, name: str) -> str:
        """How a problem names a field of the declaration."""
        return f"{self.path}.sharding_config.{name}"

    def empty(self, seen: Seen, layout: SpmdLayout) -> Tensor:
        """A tensor of a declared layout, typed."""
        return self.audit.states(seen.empty(self.audit.on(layout), self.audit.stated), layout)

    def _arrived(self, name: str, change: Transition, call: Call) -> Tensor:
        x: Tensor = call[name]
        seen = self.passed.inputs[name]
        try:
            x = self.audit.states(x, change.src)
            self._demand_shape(x, seen, change.src, f"in_src_shardings[{name!r}]")
        except SpmdTypeError as error:
            if blame.arrival(self, name, call, change, error):
                return x
            x = self.empty(seen, change.src)
        except Misshapen as error:
            self.audit.tell(error.problem)
            x = self.empty(seen, change.src)
        steps = self.audit.carries(change)
        return self.audit.states(steps(x), change.dst) if steps else x

    def _in_compute(self) -> dict[str, Tensor]:
        """The states that are not in compute as they are at rest."""
        crossing = {name: self.audit.carries(change) for name, change in self.contract.states.items()}
        return {name: steps(getattr(self.module, name)) for name, steps in crossing.items() if steps}

    def _computed(self, call: Call) -> Any:
        """What forward returns; `_UNKNOWN` where something is wrong with it."""
        if self.is_leaf and self.path in self.audit.unjudged:
            return _UNKNOWN
        self.audit.at.append(self)
        self.audit.calls.append(call)
        try:
            with (
                self.holding(self.held),
                self.audit.meter.at(self.path),
                self.audit.believing(self.path, region.reasons(self)),
                region.inside(self),
            ):
                return call.run()
        except Lost:
            return _UNKNOWN
        except SpmdTypeError as error:
            blame.forward(self, call, error)
        except MeshwrightError:
            raise
        except Exception as error:
            at = f"{self.path}.forward: {where.of_error(error)}"
            self.audit.tell(
                Problem(where=at, what=f"forward fails on a rank's shapes: {type(error).__name__}: {error}")
            )
        finally:
            self.audit.at.pop()
            self.audit.calls.pop()
        return _UNKNOWN

    @contextmanager
    def holding(self, states: Mapping[str, Tensor]) -> Iterator[None]:
        """Other tensors in place of states; an attribute of the instance is found before the registered state."""
        held = self.module.__dict__
        before = {name: held.pop(name) for name in states if name in held}
        held.update(states)
        try:
            yield
        finally:
            for name in states:
                held.pop(name, None)
            held.update(before)

    def _handed_on(self, result: Any, call: Call) -> Any:
        declared, outputs = self.contract.outputs, self.passed.outputs
        if result is _UNKNOWN:
            return self._assumed(call)
        if declared is None:
            return result
        try:
            return map_tree(
                lambda change, seen, value: self._output(change, seen, value, call), declared, outputs, result
            )
        except Unlike as error:
            self.audit.tell(
                Problem(
                    where=self.field("out_src_shardings"),
                    what=str(error),
                    fix="declare a tree of layouts that is built like the value",
                )
            )
            return result

    def _assumed(self, call: Call) -> Any:
        """What is declared; of a module that declares nothing what it was given, if that is of the same shape."""
        if self.contract.outputs is not None:
            return map_tree(
                lambda change, seen: (
                    None if seen is None or change is None else self.hands_on(self.empty(seen, change.dst))
                ),
                self.contract.outputs,
                self.passed.outputs,
            )
        for name, x in call.tensors():
            if self.passed.inputs[name] == self.passed.outputs:
                declared = self.contract.inputs.get(name)
                layout = self.audit.on(declared.src) if declared is not None else SpmdLayout(layout_of(x))
                return assert_type(self.passed.outputs.empty(layout, self.audit.stated), layout)
        raise Lost

    def _output(self, change: Transition | None, seen: Seen | None, value: Any, call: Call) -> Any:
        if change is None or seen is None or not isinstance(value, Tensor):
            return value
        try:
            if self.config.local_map is not None:
                value = region.leaves(self, value, change.src)
            value = self.audit.states(value, change.src)
            self._demand_shape(value, seen, change.src, "out_src_shardings")
        except SpmdTypeError as error:
            return self.hands_on(blame.output(self, change, seen, value, call, error))
        except Misshapen as error:
            self.audit.tell(error.problem)
            return self.hands_on(self.empty(seen, change.dst))
        steps = self.audit.carries(change)
        return self.hands_on(self.audit.states(steps(value), change.dst) if steps else value)

    def hands_on(self, value: Tensor) -> Tensor:
        """Note where a tensor comes from."""
        raw = self.config.out_dst_shardings or self.config.out_src_shardings
        if isinstance(raw, SpmdLayout):
            blame.note_origin(value, blame.Origin(self.path, raw))
        return value

    def _demand_shape(self, x: Tensor, seen: Seen, layout: SpmdLayout, field: str) -> None:
        expected = seen.part(self.audit.on(layout), self.audit.stated)
        if tuple(x.shape) != expected:
            raise Misshapen(
                Problem(
                    where=self.field(field),
                    what=f"{layout} of {list(seen.shape)} leaves a rank {list(expected)}, and it has {list(x.shape)}",
                    why="a rank's tensor is its part of what one device computes",
                )
            )


_UNKNOWN: Final = object()

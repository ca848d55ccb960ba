"""`Place`: what a module may know of where it stands. Fixed when the model is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.comm.transport import Transport
from meshwright.types.layout import SpmdLayout


@dataclass(frozen=True)
class Place:
    """One module on one rank.

    shapes: state -> its global shape. states, inputs: layouts in compute, on the axes that are on.
    axes: axis -> its transport.
    """

    shapes: Mapping[str, tuple[int, ...]]
    states: Mapping[str, SpmdLayout]
    inputs: Mapping[str, SpmdLayout]
    axes: Mapping[str, Transport]

    def span(self, state: str, dim: int) -> range:
        """The positions of dim `dim` of `state` that this rank computes with."""
        degree = {name: axis.size for name, axis in self.axes.items()}
        index = {name: axis.index for name, axis in self.axes.items()}
        length = self.shapes[state][dim]
        return self.states[state].span(dim, length, degree, index) if state in self.states else range(length)

    def part(self, argument: str, dim: int) -> int:
        """Which of the equal parts of dim `dim` of the argument this rank holds, from 0."""
        number = 0
        for axis in self.cut(argument, dim):
            number = number * axis.size + axis.index
        return number

    def cut(self, argument: str, dim: int) -> tuple[Transport, ...]:
        """The axes over which dim `dim` of the argument is sharded, outermost first."""
        return tuple(self.axes[axis] for axis in self.inputs[argument].sharding(dim)) if argument in self.inputs else ()

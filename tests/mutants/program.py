"""A right program: a function that takes its tensors by name, states their types, and returns stated results.

The layouts that it states are read from its source, so a mutant of it runs on the tensors of the right program, and is
held against the results that the right program declares.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import torch
from torch import Tensor

import meshwright.spmd as spmd
from meshwright.comm.grid import DENSE, Axes, ParallelismDims
from tests.denotation import local

Results = Mapping[str, Tensor]


class Given(Protocol):
    """What this rank holds of an operand of the program."""

    def __call__(self, name: str, shape: tuple[int, ...], *, wants: bool = False, below: int = 0) -> Tensor:
        """wants: a gradient. below: whole numbers from 0 to there."""
        ...


@dataclass(frozen=True)
class Program:
    """axes: axis -> ranks, outermost first. local: judged in local mode."""

    run: Callable[[Given], Results]
    axes: Mapping[str, int]
    local: bool

    @property
    def name(self) -> str:
        return self.run.__name__

    @cached_property
    def tree(self) -> ast.FunctionDef:
        """Its source, without the decorator."""
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(self.run))).body
        assert isinstance(function, ast.FunctionDef)
        function.decorator_list = []
        return function

    @property
    def line(self) -> int:
        """Where its source begins in its file."""
        return inspect.getsourcelines(self.run)[1]

    def built(self, tree: ast.FunctionDef, label: str) -> Callable[[Given], Results]:
        """The function of another source; errors quote its lines under `label`."""
        text = ast.unparse(tree)
        linecache.cache[label] = (len(text), None, text.splitlines(keepends=True), label)
        names = dict(self.run.__globals__)
        exec(compile(text, label, "exec"), names)
        made: Callable[[Given], Results] = names[tree.name]
        return made

    @cached_property
    def inputs(self) -> Mapping[str, spmd.SpmdLayout]:
        """Name of an operand -> its layout."""
        return {
            stated.args[0].args[0].value: self._layout(stated)
            for stated in self._stated()
            if isinstance(stated.args[0], ast.Call) and ast.unparse(stated.args[0].func) == "given"
        }

    @cached_property
    def outputs(self) -> Mapping[str, spmd.SpmdLayout]:
        """Name of a result -> its layout."""
        (returned,) = (node for node in self.tree.body if isinstance(node, ast.Return))
        assert isinstance(returned.value, ast.Dict)
        return {
            ast.literal_eval(key): self._layout(value)
            for key, value in zip(returned.value.keys, returned.value.values, strict=True)
            if key is not None
        }

    def _stated(self) -> Iterable[Any]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and is_stated(node))

    def _layout(self, stated: Any) -> spmd.SpmdLayout:
        return spmd.SpmdLayout(eval(ast.unparse(stated.args[1]), self.run.__globals__))

    def given(self, dims: ParallelismDims, rank: int) -> Given:
        """The operands of one rank; they are made unseen, as data and stored weights are."""

        def held(name: str, shape: tuple[int, ...], *, wants: bool = False, below: int = 0) -> Tensor:
            with spmd.no_typecheck("operands come from outside"):
                part = local(self.inputs[name], _whole(name, shape, below), dims, rank)
                return part.requires_grad_(wants)

        return held

    @property
    def dims(self) -> ParallelismDims:
        return _dims(self.axes)

    @property
    def view(self) -> Axes:
        """The axes that it names."""
        return {axis: DENSE[axis] for axis in self.axes}

    def on_this_rank(self, run: Callable[[Given], Results]) -> Results:
        """`run` as one rank of the current mesh."""
        mesh = spmd.current_mesh()
        assert mesh is not None
        rank = 0
        for axis in self.axes:
            rank = rank * mesh[axis].size + mesh[axis].index
        return run(self.given(_dims({axis: mesh[axis].size for axis in self.axes}), rank))


def _dims(axes: Mapping[str, int]) -> ParallelismDims:
    return ParallelismDims(**{_DEGREE.get(axis, axis): degree for axis, degree in axes.items()})


_DEGREE: Final = {"dp": "dp_shard"}


def is_stated(node: ast.Call) -> bool:
    """Whether a call is `assert_type`."""
    return ast.unparse(node.func) == "spmd.assert_type"


def _whole(name: str, shape: tuple[int, ...], below: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    if below:
        return torch.randint(below, shape, generator=generator)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


PROGRAMS: Final[dict[str, Program]] = {}
"""All right programs by name."""


def program(
    axes: Mapping[str, int], *, local: bool = False
) -> Callable[[Callable[[Given], Results]], Callable[[Given], Results]]:
    """Add a right program."""

    def add(run: Callable[[Given], Results]) -> Callable[[Given], Results]:
        PROGRAMS[run.__name__] = Program(run, axes, local)
        return run

    return add

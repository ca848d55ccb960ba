"""Programs of one rank, on a mesh of which only shapes are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError

MESH = spmd.mesh(dp=2, tp=2)


def given(kind: spmd.SpmdType, *shape: int, wants: bool = True, **others: spmd.SpmdType) -> Tensor:
    """A tensor of `kind` on tp, and `others`; it wants a gradient unless said."""
    x = torch.randn(shape, dtype=torch.float64).requires_grad_(wants)
    return spmd.assert_type(x, {"tp": kind, **others})


def accepted(program: Callable[[], Any], *, local: bool = False) -> Any:
    """What a program returns that is accepted: of a tensor its layout."""
    with spmd.set_current_mesh(MESH), spmd.typecheck(local=local):
        result = program()
        return dict(spmd.layout_of(result)) if isinstance(result, Tensor) else result


def refused(program: Callable[[], Any], code: Code, *, local: bool = False) -> Problem:
    """What is said of a program that is refused, which is of this kind."""
    with (
        spmd.set_current_mesh(MESH),
        spmd.typecheck(local=local),
        pytest.raises(SpmdTypeError) as error,
    ):
        program()
    (problem,) = error.value.problems
    assert problem.code is code, f"{problem.code}, not {code}: {problem}"
    assert problem.where
    assert problem.why
    assert problem.fix
    return problem

"""The type system alone: cheap to import, and the same program runs unchecked on plain tensors."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.comm.threads import run_ranks
from tests.check.judged import judged, on


def test_importing_it_loads_torch_and_neither_the_checker_nor_the_trainer():
    code = (
        "import sys, torch; before = set(sys.modules); import meshwright.spmd; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}));"
        "print(*sorted(name for name in sys.modules if name.startswith('meshwright.')))"
    )
    outside, inside = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert set(outside.split()) - {"meshwright"} <= sys.stdlib_module_names
    rooms = {name.split(".")[1] for name in inside.split()}
    assert rooms == {"spmd", "types", "comm", "errors", "codes"}


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = spmd.nothing


def mlp(x, up, down, sequence_parallel):
    """Column-parallel, then row-parallel; between blocks S(1) or I."""
    between = spmd.S(1) if sequence_parallel else spmd.I
    x = spmd.assert_type(x, {"tp": between})
    x = spmd.redistribute(x, "tp", src=between, dst=spmd.R)
    hidden = torch.nn.functional.silu(x @ up)
    return spmd.redistribute(hidden @ down, "tp", src=spmd.P, dst=between)


@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.parametrize("checked", [True, False])
def test_a_tensor_parallel_mlp_agrees_with_one_device(sequence_parallel, checked):
    from tests.denotation import denoted, local, sample

    dims = on("tp", 2)
    between = {"tp": spmd.S(1) if sequence_parallel else spmd.I}
    columns, rows = {"tp": spmd.S(1)}, {"tp": spmd.S(0)}
    whole = [sample((2, 4, 3), 1), sample((3, 4), 2), sample((4, 3), 3)]

    def program(rank):
        held = [local(kind, w, dims, rank) for kind, w in zip((between, columns, rows), whole, strict=True)]
        x, up, down = (part.requires_grad_() for part in held)
        spmd.assert_type(up, columns)
        spmd.assert_type(down, rows)
        out = mlp(x, up, down, sequence_parallel)
        loss = out.square().sum()
        loss.backward()
        return out.detach(), x.grad, up.grad, down.grad

    results = list(zip(*(judged if checked else lambda f, d: run_ranks(d, f))(program, dims), strict=True))
    alone = [w.clone().requires_grad_() for w in whole]
    out = torch.nn.functional.silu(alone[0] @ alone[1]) @ alone[2]
    out.square().sum().backward()
    torch.testing.assert_close(denoted(between, results[0], dims), out.detach())
    for kind, parts, one in zip((between, columns, rows), results[1:], alone, strict=True):
        torch.testing.assert_close(denoted(kind, parts, dims), one.grad)

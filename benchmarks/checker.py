"""What the checker adds to an op, beside `spmd-types` 0.3.1; to a model; and what is left of it when nobody checks.

    python -m benchmarks.checker [--rounds 15]

One run interleaves both libraries and the plain program, and takes the median of each. Needs the extra `peers`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import meshwright.spmd as spmd
from benchmarks.checked_model import programs
from meshwright import recipes
from meshwright.check import typecheck
from meshwright.comm.scope import set_current_mesh
from meshwright.comm.shapes import mesh as shape_mesh

REPEATS = 30
"""Times that the program of a measurement runs its ops."""


def ops(x: Tensor, weight: Tensor, bias: Tensor) -> int:
    """The ops of a gated layer: x[B, L, d], weight[d, d], bias[d]; how many there were."""
    for _ in range(REPEATS):
        h = F.linear(x, weight)
        h = h + bias
        h = F.silu(h) * h
        h = h.transpose(0, 1)
        h = h.reshape(h.shape[0], h.shape[1], 2, -1)
        h = h.flatten(2)
        h = h.softmax(-1)
        h = torch.cat([h, h], 0)
        h = h[:, :, 0:4]
        h.sum()
    return REPEATS * 11


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    """Small, so that Python is what takes time."""
    return torch.ones(2, 4, 8), torch.ones(8, 8), torch.ones(8)


def plain() -> Callable[[], int]:
    given = tensors()
    return lambda: ops(*given)


def ours(local: bool) -> Callable[[], int]:
    """x and what comes of it is sharded over dp, whole over tp; weights are R."""
    view = shape_mesh(dp=2, tp=2)

    def run() -> int:
        x, weight, bias = tensors()
        with spmd.set_current_mesh(view), typecheck(local=local):
            spmd.assert_type(x, {"dp": spmd.V if local else spmd.S(0), "tp": spmd.R})
            for each in (weight, bias):
                spmd.assert_type(each, {"dp": spmd.R, "tp": spmd.R})
            return ops(x, weight, bias)

    return run


def peer(local: bool) -> Callable[[], int]:
    """The same in the peer's words."""
    import spmd_types as st
    from spmd_types.checker import typecheck as their_typecheck

    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def run() -> int:
        x, weight, bias = tensors()
        with st.set_current_mesh(mesh), their_typecheck(local=local):
            st.assert_type(x, {"dp": st.V if local else st.S(0), "tp": st.R})
            for each in (weight, bias):
                st.assert_type(each, {"dp": st.R, "tp": st.R})
            return ops(x, weight, bias)

    return run


def medians(programs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Name -> median seconds of a run, all of them in turn in each round."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for program in programs.values():
        program()
    for _ in range(rounds):
        for name, program in programs.items():
            start = time.perf_counter()
            program()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def added(rounds: int) -> Table:
    """What each checker adds to an op."""
    table = Table("mode", "ours, us an op", "spmd-types, us an op", "ratio", "wanted", title="added by checking")
    for name, local, wanted in (("global", False, 1 / 20), ("local", True, 1 / 5)):
        found = medians({"plain": plain(), "ours": ours(local), "peer": peer(local)}, rounds)
        count = REPEATS * 11
        mine, theirs = ((found[one] - found["plain"]) / count * 1e6 for one in ("ours", "peer"))
        table.add_row(name, f"{mine:.1f}", f"{theirs:.1f}", f"{mine / theirs:.3f}", f"{wanted:.3f}")
    return table


def model(rounds: int) -> Table:
    """Forward and backward of the recipe `llama3_debug` on fake tensors."""
    found = medians(programs(recipes.find("llama3_debug")), rounds)
    table = Table("unchecked", "checked", "ratio", "wanted", title="forward and backward of llama3_debug")
    table.add_row(
        *(f"{found[name] * 1e3:.0f} ms" for name in ("unchecked", "checked")),
        f"{found['checked'] / found['unchecked']:.3f}",
        "under 2",
    )
    return table


def erased(rounds: int) -> Table:
    """With nobody checking: `assert_type`, and a collective against the bare functional one."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    x = torch.ones(64)
    name = mesh.get_group("tp").group_name
    calls = 2000
    types = {"tp": spmd.R}

    group = mesh.get_group("tp")

    def bare() -> None:
        for _ in range(calls):
            functional.wait_tensor(functional.all_reduce(x, "sum", group))

    def op() -> None:
        for _ in range(calls):
            torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(x, "sum", name))

    with set_current_mesh(mesh):

        def ours() -> None:
            for _ in range(calls):
                spmd.all_reduce(x, "tp", src=spmd.P, dst=spmd.R)

        def stated() -> None:
            for _ in range(calls):
                spmd.assert_type(x, types)

        def empty() -> None:
            for _ in range(calls):
                pass

        found = medians({"bare": bare, "op": op, "ours": ours, "stated": stated, "empty": empty}, rounds)
    table = Table("call", "measured", "wanted", title="when nobody checks")
    table.add_row("assert_type", f"{(found['stated'] - found['empty']) / calls * 1e6:.2f} us", "under 0.5 us")
    table.add_row(
        "all_reduce, to torch's functional one",
        f"{found['ours'] / found['bare']:.3f} ({found['bare'] / calls * 1e6:.1f} us bare)",
        "under 1.05",
    )
    table.add_row(
        "all_reduce, to the op alone, where nothing is sent",
        f"+{(found['ours'] - found['op']) / calls * 1e6:.1f} us ({found['op'] / calls * 1e6:.1f} us bare)",
        "",
    )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args(arguments).rounds
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    console = Console()
    for measure in (added, model, erased):
        console.print(measure(rounds))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

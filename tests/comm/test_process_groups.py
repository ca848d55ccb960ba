"""Process groups over gloo give, to the last bit, what thread ranks give: every step, forward and backward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor

from meshwright.comm.grid import DENSE, WORLD, ParallelismDims
from meshwright.comm.process_groups import ProcessGroups
from meshwright.comm.scope import axis, current_mesh, set_current_mesh
from meshwright.comm.steps import BoundStep
from meshwright.comm.threads import run_ranks
from meshwright.types.kinds import I, P, R, S, SpmdType, V
from meshwright.types.transition import CHANGES, CLAIMS, Step, claim, step

DIMS = ParallelismDims(dp_shard=2, tp=2)
AXES = {**DENSE, **WORLD}
KIND = {"R": R, "I": I, "V": V, "P": P}
SHARDS = [(S(0), S(1)), (S(1), S(0)), (S(0, (3, 1)), S(1)), (S(1, (0, 2)), S(0, (3, 1)))]
"""Evenly and unevenly, one shard empty; a whole tensor is [4, 2]."""


def steps(axis_name: str) -> list[Step]:
    found: list[Step | None] = [claim(axis_name, KIND[pair[0]], KIND[pair[-1]]) for pair in sorted(CLAIMS)]
    for pair in CHANGES:
        for first, second in SHARDS if "S" in pair else SHARDS[:1]:
            shards = iter((first, second))
            src, dst = (KIND[letter] if letter in KIND else next(shards) for letter in pair.split())
            found.append(step(axis_name, src, dst, expert=True))
    return [change for change in found if change is not None]


def local_shape(kind: SpmdType, change: Step) -> tuple[int, ...]:
    """Of what a rank holds: [4, 2] whole; [2, 2] in a list of two, which is [2, 2, 2] whole."""
    shape = [4, 2]
    if V in (change.src, change.dst):
        return (2, 2) if kind is V or change.is_claim else (2, 2, 2)
    if isinstance(kind, S):
        place = axis(change.axis).index
        shape[kind.dim] = kind.sizes[place] if kind.sizes else shape[kind.dim] // 2
    return tuple(shape)


def random(shape: tuple[int, ...], kind: SpmdType, change: Step) -> Tensor:
    """Equal on the ranks of the axis where `kind` says so."""
    mesh = current_mesh()
    assert mesh is not None
    rank = mesh["world"].index
    if kind in (R, I):
        rank -= mesh[change.axis].index * {"dp": 2, "tp": 1}[change.axis]
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


def everything(rank: int) -> dict[str, list[Tensor]]:
    """What this rank gets from every step on both axes, and from the calls of the transport."""
    results = {}
    for name in ("dp", "tp"):
        for change in steps(name):
            x = random(local_shape(change.src, change), change.src, change).requires_grad_()
            y = BoundStep(change, axis(name))(x)
            g = random(local_shape(change.dst, change), change.dst.dual, change)
            (gradient,) = torch.autograd.grad(y, x, g)
            results[str(change)] = [y.detach(), gradient]
        group = axis(name)
        x = torch.randn(3, 2, generator=torch.Generator().manual_seed(rank))
        results[f"{name} max, min"] = [group.all_reduce(x, "max"), group.all_reduce(x, "min")]
        rows = [3, 0] if group.index == 0 else [1, 2]
        results[f"{name} rows"] = [group.all_to_all(x, [3, 1] if group.index == 0 else [0, 2], rows)]
        if group.index == 0:
            group.send(x, 1)
            results[f"{name} sent"] = [x]
        else:
            results[f"{name} sent"] = [group.recv(torch.empty_like(x), 0)]
    return results


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=DIMS.world)
    with set_current_mesh(ProcessGroups(DIMS, "cpu").view(AXES)) as view:
        torch.save((everything(rank), view.degree, view.index), Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """(results, degrees, places) of each rank of four real processes."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(process, (str(folder),), nprocs=DIMS.world)
    return [torch.load(folder / f"{rank}.pt") for rank in range(DIMS.world)]


@pytest.fixture(scope="module")
def threads():
    return run_ranks(DIMS, everything, AXES)


def test_every_step_is_the_same_bit_for_bit(processes, threads):
    for (mine, _, _), other in zip(processes, threads, strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            for a, b in zip(mine[name], other[name], strict=True):
                assert a.shape == b.shape, name
                assert a.numpy().tobytes() == b.contiguous().numpy().tobytes(), name


def test_no_kind_of_step_is_left_out(processes):
    results = processes[0][0]
    assert len(results) == 2 * (len(steps("tp")) + 3)
    assert {f"{change.src.letter} {change.dst.letter}" for change in steps("tp")} == set(CHANGES) | CLAIMS


def test_places_are_those_of_the_grid(processes):
    for rank, (_, degree, index) in enumerate(processes):
        assert degree == {name: size for name, size in DIMS.degrees(AXES).items() if size > 1}
        assert index == {name: DIMS.index(rank, AXES)[name] for name in degree}


@pytest.mark.parametrize(
    "schema",
    [
        "all_reduce(Tensor input, str reduce_op, Any group_name)",
        "all_gather_into_tensor(Tensor input, int group_size, Any group_name)",
        "reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, Any group_name)",
        "all_to_all_single(Tensor input, SymInt[] output_split_sizes, SymInt[] input_split_sizes, Any group_name)",
        "wait_tensor(Tensor tensor)",
    ],
)
def test_the_private_operators_take_what_is_given_to_them(schema):
    operator = getattr(torch.ops._c10d_functional, schema.partition("(")[0]).default
    assert str(operator._schema) == f"_c10d_functional::{schema} -> Tensor"

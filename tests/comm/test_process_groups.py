"""Process groups over gloo give, to the last bit, what thread ranks give: every step, forward and backward."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from meshwright.comm.collectives import all_reduce, redistribute
from meshwright.comm.grid import DENSE, WORLD, ParallelismDims
from meshwright.comm.mesh_axis import MeshAxis
from meshwright.comm.process_groups import ProcessGroups
from meshwright.comm.scope import axis, current_mesh, set_current_mesh
from meshwright.comm.steps import BoundStep
from meshwright.comm.threads import run_ranks
from meshwright.types.kinds import I, P, R, S, SpmdType, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import plan
from meshwright.types.transition import CHANGES, CLAIMS, Step, claim, step

DIMS = ParallelismDims(dp_shard=2, tp=2)
AXES = {**DENSE, **WORLD}
KIND = {"R": R, "I": I, "V": V, "P": P}
WHOLE, SUM = (SpmdLayout({"dp": kind, "tp": kind}) for kind in (R, P))
NESTED = [SpmdLayout(dict.fromkeys(order, kind)) for order in (("dp", "tp"), ("tp", "dp")) for kind in (S(0), S(1))]
SHARDS = [(S(0), S(1)), (S(1), S(0)), (S(0, (3, 1)), S(1)), (S(1, (0, 2)), S(0, (3, 1)))]
"""Evenly and unevenly, one shard empty; a whole tensor is [4, 2]."""


def steps(axis_name: str) -> list[Step]:
    found: list[Step | None] = [*(claim(axis_name, KIND[pair[0]], KIND[pair[-1]])[0] for pair in sorted(CLAIMS))]
    for pair in CHANGES:
        for first, second in SHARDS if "S" in pair else SHARDS[:1]:
            shards = iter((first, second))
            src, dst = (KIND[letter] if letter in KIND else next(shards) for letter in pair.split())
            found.append(step(axis_name, src, dst, expert_mode=True))
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
    return results | together(rank)


JOINT = list(itertools.permutations((WHOLE, SUM, *NESTED), 2))


def together(rank: int) -> dict[str, list[Tensor]]:
    """What this rank gets from plans over both axes at once, nested in either order."""
    view = current_mesh()
    assert view is not None
    results = {}
    for src, dst in JOINT:
        x = torch.arange(32.0).reshape(4, 8)  # sums of whole numbers are the same in any order
        x = (
            x
            if src is WHOLE
            else rank + x.flatten()[: 32 if src is SUM else 8].reshape(src.local_shape((4, 8), view.degree, view.index))
        )
        y = x.requires_grad_()
        made = plan(src, dst, view.degree)
        for change in made:
            y = BoundStep(change, view.joined(change.axes))(y)
        (gradient,) = torch.autograd.grad(y, x, y.detach())
        results[f"{src} -> {dst} in {len(made)}"] = [y.detach(), gradient]
    group = view.joined(("tp", "dp"))
    x = torch.arange(3.0) + 10 * rank
    following, before = (group.index + 1) % 4, (group.index - 1) % 4
    rows = [[2, 1][place == following] if place in (following, group.index) else 0 for place in range(4)]
    received = [2 if place == group.index else 1 if place == before else 0 for place in range(4)]
    results["rows over (tp,dp)"] = [group.all_to_all(x, received, rows)]
    if group.index == 1:
        group.send(x, 2)
    if group.index == 2:
        results["sent over (tp,dp)"] = [group.recv(torch.empty_like(x), 1)]
    return results


def other_meshes(rank: int) -> dict[str, list[float]]:
    """Sums over tp and over both axes at once, with axes named in every way that there is."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x = torch.tensor([1.0 + rank, 10.0 * rank])

    def over(axis_like) -> list[float]:
        return all_reduce(x, axis_like, dst=R).tolist()

    def both() -> list[float]:
        src, dst = {"tp": S(0), "dp": S(0)}, {"dp": R, "tp": R}
        return redistribute(x, src=src, dst=dst).tolist()

    found = {"group alone": over(mesh.get_group("tp")), "dim alone": over(mesh["tp"])}
    meshes = {
        "device mesh": mesh,
        "groups": {"dp": mesh.get_group("dp"), "tp": mesh["tp"]},
        "patterns": {"dp": MeshAxis.of(2, 2), "tp": MeshAxis.of(2, 1)},
    }
    for name, given in meshes.items():
        with set_current_mesh(given):
            ways = {"name": "tp", "group": mesh.get_group("tp"), "dim": mesh["tp"], "pattern": MeshAxis.of(2, 1)}
            found |= {f"{name}, {way}": over(axis_like) for way, axis_like in ways.items()}
            found[f"{name}, together"] = both()
    with set_current_mesh([mesh.get_group("dp"), mesh.get_group("tp")]):
        found["nameless"] = over(mesh.get_group("tp"))
    return found


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=DIMS.world)
    with set_current_mesh(ProcessGroups(DIMS, "cpu").view(AXES)) as view:
        found = everything(rank), view.degree, view.index
    torch.save((*found, other_meshes(rank)), Path(folder, f"{rank}.pt"))
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
    for (mine, *_), other in zip(processes, threads, strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            for a, b in zip(mine[name], other[name], strict=True):
                assert a.shape == b.shape, name
                assert a.numpy().tobytes() == b.contiguous().numpy().tobytes(), name


def test_no_kind_of_step_is_left_out(processes):
    results = processes[0][0]
    assert len(results) == 2 * (len(steps("tp")) + 3) + len(JOINT) + 1
    assert {f"{change.src.letter} {change.dst.letter}" for change in steps("tp")} == set(CHANGES) | CLAIMS


def test_places_are_those_of_the_grid(processes):
    for rank, (_, degree, index, _) in enumerate(processes):
        assert degree == {name: size for name, size in DIMS.degrees(AXES).items() if size > 1}
        assert index == {name: DIMS.index(rank, AXES)[name] for name in degree}


def test_an_axis_is_meant_by_its_name_or_its_ranks(processes):
    for rank, (*_, found) in enumerate(processes):
        low = rank - rank % 2
        expected = [3.0 + 2 * low, 10.0 * (2 * low + 1)]
        together = [value for place in (0, 2, 1, 3) for value in (1.0 + place, 10.0 * place)]
        assert len(found) == 2 + 3 * 5 + 1
        for way, values in found.items():
            assert values == (together if way.endswith("together") else expected), way


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

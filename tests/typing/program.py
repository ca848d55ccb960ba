"""Every public name of `meshwright.spmd`, as a typed program uses it. It is read by mypy, and not run."""

from __future__ import annotations

from typing import Any, assert_type

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

import meshwright.spmd as spmd


def values() -> None:
    types: list[spmd.SpmdType] = [spmd.R, spmd.I, spmd.V, spmd.P, spmd.S(0), spmd.Shard(1, (3, 2))]
    assert_type(spmd.R.dual, spmd.SpmdType)
    assert_type(spmd.S(-1).dim, int)
    assert_type(spmd.S(0).sizes, tuple[int, ...] | None)
    axes: tuple[str, ...] = (spmd.DP, spmd.CP, spmd.TP, spmd.EP, spmd.PP, spmd.DP_REPLICATE, spmd.DP_SHARD)
    axes += (spmd.EFSDP, spmd.TP_COPY, spmd.TP_KV)
    layout = spmd.SpmdLayout(dict(zip(axes, types, strict=False)))
    assert_type(layout["tp"], spmd.SpmdType)
    assert_type(layout.dual, spmd.SpmdLayout)
    assert_type(spmd.PartitionSpec("dp", None, ("cp", "tp")).layout(), spmd.SpmdLayout)
    assert_type(spmd.merge_types({"dp": spmd.S(0)}, spmd.R, None), spmd.SpmdLayout)


def plans() -> None:
    change = spmd.Transition({"tp": spmd.P}, {"tp": spmd.S(1)})
    found = spmd.plan(change.src, change.dst, {"tp": 4})
    assert_type(found, spmd.Plan)
    assert_type(found[0], spmd.Step)
    assert_type(found[:1], tuple[spmd.Step, ...])
    assert_type([each.axes for each in found], list[tuple[str, ...]])
    assert_type(found.moved(1024), tuple[int, ...])
    assert_type(spmd.step("tp", spmd.P, spmd.R), spmd.Step | None)


def meshes(device_mesh: DeviceMesh, group: dist.ProcessGroup) -> None:
    one_process = spmd.mesh(rank=1, dp=2, tp=4)
    assert_type(one_process, spmd.View)
    for mesh in (one_process, device_mesh, {"tp": group}, {"tp": spmd.MeshAxis.of(4)}, [group]):
        with spmd.set_current_mesh(mesh) as view:
            assert_type(view, spmd.View)
    assert_type(spmd.current_mesh(), spmd.View | None)
    assert_type(spmd.axis_index("tp"), int)
    assert_type(spmd.axis_size(group), int)
    assert_type(spmd.size(torch.ones(4), 0, "tp"), int)
    axis = spmd.MeshAxis.of(group)
    assert_type(axis.size, int)
    assert_type(axis.ranks(0), tuple[int, ...])
    assert_type(axis.index(3), int)


class Block(nn.Module):
    """Collectives in a typed forward."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.weight = spmd.assert_type(nn.Parameter(torch.ones(4, 4)), {"tp": spmd.S(0)})
        assert_type(self.weight, nn.Parameter)

    def forward(self, x: Tensor) -> Tensor:
        x = spmd.redistribute(x, "tp", src=spmd.S(1), dst=spmd.R, backward_options={"op_dtype": torch.float32})
        x = spmd.redistribute(x, src={"tp": spmd.R, "dp": spmd.S(0)}, dst={"tp": spmd.S(1), "dp": spmd.S(0)})
        x = spmd.all_gather(x, self.group, src=spmd.V, dst=spmd.R, gather_dim=1, split_sizes=[2, 2])
        x = spmd.all_reduce(x, spmd.MeshAxis.of(4), src=spmd.P, dst=spmd.I, op_dtype=torch.float32, inplace=True)
        x = spmd.reduce_scatter(x, "tp", src=spmd.P, dst=spmd.S(0), out_dtype=torch.bfloat16)
        x = spmd.all_to_all(x, "ep", src=spmd.S(0), dst=spmd.S(0), input_split_sizes=[1, 2])
        x = spmd.convert(x, "tp", src=spmd.I, dst=spmd.R)
        x = spmd.reinterpret(x, "tp", src=spmd.V, dst=spmd.P)
        x = spmd.unshard(spmd.shard(x, "tp", src=spmd.R, dst=spmd.S(0)), "tp", src=spmd.S(0), dst=spmd.R)
        return spmd.invariant_to_replicate(x, "tp")


def stated(x: Tensor, group: dist.ProcessGroup) -> None:
    assert_type(spmd.assert_type(x, {"dp": spmd.S(0), "tp": spmd.R}), Tensor)
    assert_type(spmd.assert_type(x, {group: spmd.S(-1)}, spmd.R), Tensor)
    assert_type(spmd.assert_type(x, spmd.PartitionSpec("dp"), partition_spec=None), Tensor)
    assert_type(spmd.assert_type([x, x], spmd.R), list[Tensor])
    assert_type(spmd.assert_type([nn.Parameter(x)], spmd.R), list[nn.Parameter])
    assert_type(spmd.assert_type((x, x), spmd.R), tuple[Tensor, Tensor])
    assert_type(spmd.assert_type_like(x, x, {"tp": spmd.P}), Tensor)
    assert_type(spmd.assert_local_type(x, {"tp": spmd.V}), Tensor)
    assert_type(spmd.mutate_type(x, "tp", src=spmd.P, dst=spmd.R), Tensor)
    assert_type(spmd.mutate_type(x, src={"tp": spmd.P}, dst={"tp": spmd.R}), Tensor)
    assert_type(spmd.reinterpret_mesh(x, {"dp_cp": spmd.S(0)}), Tensor)
    assert_type(spmd.reinterpret_mesh(x, spmd.mesh(dp=8), inplace=True), Tensor)
    assert_type(spmd.reinterpret_no_grad(x, "tp", dst=spmd.I), Tensor)


def asked(x: Tensor) -> None:
    assert_type(spmd.layout_of(x), spmd.SpmdLayout)
    assert_type(spmd.has_local_type(x), bool)
    assert_type(spmd.get_local_type(x), dict[str, spmd.SpmdType])
    assert_type(spmd.get_axis_local_type(x, "tp"), spmd.SpmdType)
    assert_type(spmd.get_partition_spec(x), spmd.PartitionSpec | None)
    assert_type(spmd.show(x), str)
    assert_type(spmd.is_type_checking(), bool)


@spmd.local_map(in_types=({"tp": spmd.V}, None), out_types={"tp": spmd.P}, in_grad_types=({"tp": spmd.V}, None))
def region(x: Tensor, times: int) -> Tensor:
    return x * times


@spmd.local_map(in_types=spmd.Infer, out_types=(spmd.PartitionSpec("tp"), {"tp": spmd.R}))
def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x


@spmd.no_typecheck
def unjudged(x: Tensor) -> Tensor:
    return x


@spmd.no_typecheck("its result is stated by whoever calls it")
def reasoned(x: Tensor, times: int = 1) -> tuple[Tensor, int]:
    return x, times


class Double(torch.autograd.Function):
    """y = 2 x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2

    @staticmethod
    def spmd_typecheck(*, x: Tensor) -> Tensor:
        return x * 2


@spmd.register_autograd_function(adjoint=False)
class Rounded(Double):
    """A straight-through estimator."""


def written(x: Tensor) -> None:
    assert_type(region(x, 2), Tensor)
    assert_type(pair(x), tuple[Tensor, Tensor])
    assert_type(unjudged(x), Tensor)
    assert_type(reasoned(x, times=2), tuple[Tensor, int])
    assert_type(spmd.register_autograd_function(Double), type[Double])


def checked(x: Tensor) -> None:
    with spmd.typecheck(local=True, collect=True) as report:
        assert_type(report, spmd.Report)
        with spmd.local(), spmd.no_typecheck(), spmd.no_typecheck("why this is right"):
            x = x * 2
    assert_type([claim.where for claim in report.claims], list[str])
    assert_type(spmd.check(lambda: asked(x), {"dp": 2, "tp": 4}, local=False), spmd.Report)


def refused(x: Tensor) -> list[str]:
    try:
        spmd.convert(x, "tp", src=spmd.P, dst=spmd.R)
    except spmd.SpmdTypeError as error:
        return [f"{problem.where}: {problem.what}; {problem.why}; {problem.fix}" for problem in error.problems]
    return []

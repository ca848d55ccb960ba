"""Every route reaches its expert, and what the expert makes of it comes back to its token, on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.overrides import TorchFunctionMode

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.process_groups import ProcessGroup
from meshwright.comm.scope import axis
from meshwright.comm.shapes import mesh
from meshwright.comm.threads import run_ranks
from meshwright.errors import RunError, SpmdTypeError
from meshwright.models.dispatch import AllToAll, Local, _Exchanged
from meshwright.models.experts import Experts
from tests.marks import slow
from tests.processes import ranks

EXPERTS, DIM = 8, 3


def numbered(first: int):
    """Experts of which each multiplies by its own number, counted from 1 over all ranks."""

    def compute(rows: Tensor, offsets: Tensor) -> Tensor:
        expert = torch.searchsorted(offsets, torch.arange(len(rows), dtype=torch.int32), right=True)
        assert int(offsets[-1]) == len(rows)
        return rows * (1.0 + first + expert).unsqueeze(-1)

    return compute


def tokens(number: int, k: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-9, 10, (number, DIM), generator=generator).double()
    return x, torch.rand(number, EXPERTS, generator=generator).argsort(1)[:, :k]


def true(x: Tensor, chosen: Tensor) -> Tensor:
    return x.unsqueeze(1) * (1.0 + chosen).unsqueeze(-1)


@given(number=st.integers(0, 12), k=st.integers(1, EXPERTS), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_local(number, k, seed):
    x, chosen = tokens(number, k, seed)
    x.requires_grad_()
    y = Local(EXPERTS)(x, chosen, numbered(0))
    assert torch.equal(y, true(x, chosen))
    y.sum().backward()
    assert torch.equal(x.grad, (1.0 + chosen).sum(1, keepdim=True).expand_as(x))


@given(numbers=st.sampled_from([2, 4]).flatmap(lambda n: st.tuples(*[st.integers(0, 6)] * n)), k=st.integers(1, 4))
@settings(max_examples=30)
def test_all_to_all(numbers, k):
    """With as many tokens on each rank as it happens to have."""

    def program(rank: int) -> None:
        group = axis("tp")
        x, chosen = tokens(numbers[rank], k, int(rank))
        x.requires_grad_()
        first = group.index * EXPERTS // group.size
        y = AllToAll(EXPERTS, group)(x, chosen, numbered(first))
        assert torch.equal(y, true(x, chosen))
        y.sum().backward()
        assert torch.equal(x.grad, (1.0 + chosen).sum(1, keepdim=True).expand_as(x))

    run_ranks(ParallelismDims(tp=len(numbers)), program)


def test_an_expert_computes_on_the_rows_of_the_first_rank_first():
    """Rows of one expert are in the order of ranks, and of routes within: sums over them repeat."""
    seen: dict[int, list[float]] = {}

    def program(rank: int) -> None:
        place = int(rank)

        def compute(rows: Tensor, offsets: Tensor) -> Tensor:
            seen[place] = rows.flatten().tolist()
            return rows

        x = torch.arange(3.0).unsqueeze(1) + 10 * place
        AllToAll(2, axis("tp"))(x, torch.tensor([[0, 1], [1, 0], [0, 1]]), compute)

    run_ranks(ParallelismDims(tp=2), program)
    assert seen == {0: [0.0, 1.0, 2.0, 10.0, 11.0, 12.0], 1: [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]}


class Reads(TorchFunctionMode):
    """Counts calls by which the host waits for values."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("tolist", "item", "__int__", "__bool__", "__index__", "nonzero", "unique", "bincount", "cpu"):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def test_the_host_waits_once_for_each_dispatch_over_ranks_and_never_for_a_local_one():
    def program(rank: int) -> tuple[list[str], list[str]]:
        x, chosen = tokens(6, 2, 0)
        x.requires_grad_()
        with Reads() as local:
            Local(EXPERTS)(x, chosen, lambda rows, offsets: rows).sum().backward()
        with Reads() as over_ranks:
            AllToAll(EXPERTS, axis("tp"))(x, chosen, lambda rows, offsets: rows).sum().backward()
        return local.found, over_ranks.found

    assert run_ranks(ParallelismDims(tp=2), program) == [([], ["tolist"])] * 2


def test_who_leaves_out_the_exchange_is_told_and_does_not_hang():
    def program(rank: int) -> None:
        if int(rank):
            AllToAll(EXPERTS, axis("tp"))(*tokens(0, 2, 0), numbered(4))

    with pytest.raises(RunError, match="rank 1: all_to_all"):
        run_ranks(ParallelismDims(tp=2), program)


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("rank", [0, 3])
def test_shapes_fit_without_anybody_to_talk_to(rank, device):
    view = mesh(ep=4, rank=rank)
    x = torch.empty(10, DIM, device=device, requires_grad=True)
    chosen = torch.empty(10, 2, dtype=torch.int64, device=device).zero_()
    received = []
    y = AllToAll(EXPERTS, view["ep"])(x, chosen, lambda rows, offsets: received.append(rows.shape[0]) or rows)
    assert y.shape == (10, 2, DIM)
    assert received[0] != 20
    y.sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_what_travels_varies_over_the_axis(device):
    view = mesh(ep=2)
    with spmd.set_current_mesh(view), spmd.typecheck(), spmd.local():
        x = torch.zeros(6, DIM, device=device, requires_grad=True)
        chosen = torch.zeros(6, 2, dtype=torch.int64, device=device)
        for each in (x, chosen):
            spmd.assert_type(each, {"ep": spmd.V})
        y = AllToAll(EXPERTS, view["ep"])(x, chosen, lambda rows, offsets: rows)
        spmd.assert_type(y, {"ep": spmd.V})


@pytest.mark.parametrize("kind", [spmd.R, spmd.I, spmd.P])
def test_what_does_not_vary_over_the_axis_is_not_dealt_out(kind):
    """Tokens that every rank has would be computed by each of them."""
    view = mesh(ep=2)
    with spmd.set_current_mesh(view), spmd.typecheck(), spmd.local():
        x = torch.zeros(6, DIM, requires_grad=True)
        spmd.assert_type(x, {"ep": kind})
        with pytest.raises(SpmdTypeError, match="V"):
            _Exchanged.apply(x, view["ep"], [1, 2], [2, 4])


@pytest.mark.parametrize("send", [[2, 3], [4, 4], [0, 0]])
def test_splits_that_leave_out_a_row_are_refused(send):
    view = mesh(ep=2)
    with spmd.set_current_mesh(view), spmd.typecheck(), spmd.local():
        x = torch.zeros(6, DIM, requires_grad=True)
        spmd.assert_type(x, {"ep": spmd.V})
        with pytest.raises(SpmdTypeError, match="6"):
            _Exchanged.apply(x, view["ep"], [1, 2], send)


def weights_of(module: nn.Module) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(each.shape, generator=generator) * 0.3 for each in module.parameters()]


def batches(experts: int):
    """Some routes, then others; an expert without tokens; all to one; at last another length."""
    generator = torch.Generator().manual_seed(1)
    for kind, length in (("", 6), ("", 6), ("without", 6), ("all", 6), ("", 7), ("", 9)):
        scores = torch.rand(2, length, experts, generator=generator)
        if kind:
            scores[..., :2] = {"without": -1.0, "all": 2.0}[kind]
        chosen = scores.topk(2).indices
        yield torch.randn(2, length, 16, generator=generator), torch.rand(chosen.shape, generator=generator), chosen


def with_gradients(module: Experts, forward: Any, x: Tensor, weights: Tensor, chosen: Tensor) -> list[Tensor]:
    x, weights = (each.clone().requires_grad_() for each in (x, weights))
    y = forward(x, weights, chosen)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, weights, *module.parameters()])]


def compiled_like_eager(module: Experts, experts: int, backend: str) -> list[int]:
    """How many graphs there were after each batch; each gives the eager values and gradients."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(module.forward, fullgraph=True, backend=counter)
    graphs = []
    for batch in batches(experts):
        mine, eager = (with_gradients(module, each, *batch) for each in (compiled, module.forward))
        for found, expected in zip(mine, eager, strict=True):
            assert (found - expected).abs().max() <= 1e-5 * max(expected.abs().max(), 1e-3)
        graphs.append(counter.frame_count)
    return graphs


def made(experts: int, own: int, hidden: int = 24) -> Experts:
    module = Experts.Config(experts=experts, dim=16, hidden=hidden).build()
    for name, param in list(module.named_parameters()):
        setattr(module, name, nn.Parameter(torch.empty(own, *param.shape[1:])))
    for param, values in zip(module.parameters(), weights_of(module), strict=True):
        param.data.copy_(values)
    return module


@pytest.mark.parametrize(("hidden", "backend"), [slow(24, "inductor"), (6, "aot_eager")])
def test_local_experts_compile_as_one_graph_whatever_is_chosen(hidden, backend):
    """Only another length asks for a second one, which serves all lengths."""
    assert compiled_like_eager(made(4, 4, hidden), 4, backend) == [1, 1, 1, 1, 2, 2]


def compiled_over_ranks(rank: int) -> list[int]:
    module = made(4, 2)
    module.dispatch = AllToAll(4, ProcessGroup("ep", dist.group.WORLD))
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        return compiled_like_eager(module, 4, "aot_eager")


@pytest.mark.slow
def test_experts_over_ranks_compile_as_one_graph_where_numbers_of_rows_are_captured():
    """Also where a rank has no row at all."""
    assert ranks(2).run(compiled_over_ranks) == [[1, 1, 1, 1, 2, 2]] * 2

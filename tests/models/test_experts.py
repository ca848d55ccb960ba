"""Experts give what a loop over them gives, in values and gradients, on one device and spread over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import axis
from meshwright.comm.shapes import mesh
from meshwright.comm.threads import run_ranks
from meshwright.core.init import TruncatedNormal, key_of
from meshwright.core.place import Place
from meshwright.errors import SpmdTypeError
from meshwright.models.dispatch import AllToAll
from meshwright.models.experts import Experts
from meshwright.types.kinds import S
from meshwright.types.layout import SpmdLayout

EXPERTS, DIM = 8, 16
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}
STATES = ("w1", "w2", "w3")


@dataclass
class Routes:
    """What experts are given: x[B, L, dim], weights, chosen[B, L, k], and the gradient of what they give."""

    x: Tensor
    weights: Tensor
    chosen: Tensor
    grad: Tensor

    def parts(self, number: int, place: int) -> Routes:
        """Those of one of `number` ranks, which have some sequences each."""
        return Routes(*(each.tensor_split(number)[place] for each in vars(self).values()))


def routes(choose: Callable[[Tensor], Tensor], batch: int = 4, length: int = 6, k: int = 2) -> Routes:
    """choose: random scores [B, L, experts] -> scores of which the k best are chosen."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.rand(batch, length, *shape, generator=generator, dtype=torch.float64)

    chosen = choose(random(EXPERTS)).topk(k).indices
    return Routes(random(DIM) - 0.5, random(k), chosen, random(DIM) - 0.5)


def without(*experts: int) -> Callable[[Tensor], Tensor]:
    return lambda scores: scores.index_fill(-1, torch.tensor(experts), -1.0)


def towards(*experts: int) -> Callable[[Tensor], Tensor]:
    return lambda scores: scores.index_fill(-1, torch.tensor(experts), 2.0)


IMBALANCE = {
    "as it comes": lambda scores: scores,
    "an expert without tokens": without(3),
    "all tokens to two experts": towards(5, 6),
    "a rank without tokens": without(0, 1, 2, 3),
    "only the last rank has tokens": towards(6, 7),
    "each sequence its own two": lambda scores: (
        scores + torch.eye(4, dtype=torch.float64).repeat_interleave(2, 1)[:, None]
    ),
}


def experts(hidden: int = 24, dtype: torch.dtype = torch.float64) -> Experts:
    module = Experts.Config(experts=EXPERTS, dim=DIM, hidden=hidden, std=0.3, std_out=0.3).build().to(dtype)
    for name, param in module.named_parameters():
        shape = param.shape
        module.initializers()[name].fill(param.data, [range(n) for n in shape], shape, key_of(0, name))
    return module


def one_by_one(module: Experts, given: Routes) -> Tensor:
    """y in float64, from a loop over experts."""
    w1, w2, w3 = (getattr(module, name).double() for name in STATES)
    y = torch.zeros_like(given.x)
    for e in range(EXPERTS):
        weight = (given.weights * (given.chosen == e)).sum(-1, keepdim=True)
        y = y + weight * (F.silu(given.x @ w1[e].T) * (given.x @ w3[e].T) @ w2[e].T)
    return y


def with_gradients(module: Experts, given: Routes, forward: Callable[..., Tensor]) -> list[Tensor]:
    """y, and the gradients of x, of weights and of the module's states."""
    x, weights = (each.detach().requires_grad_() for each in (given.x, given.weights))
    y = forward(Routes(x, weights, given.chosen, given.grad))
    wanted = [x, weights, *(getattr(module, name) for name in STATES)]
    return [y.detach(), *torch.autograd.grad(y, wanted, given.grad)]


def run(module: Experts, given: Routes) -> list[Tensor]:
    return with_gradients(module, given, lambda given: module(given.x, given.weights, given.chosen))


def assert_close(found: Sequence[Tensor], true: Sequence[Tensor], tolerance: float) -> None:
    for mine, theirs in zip(found, true, strict=True):
        assert mine.shape == theirs.shape
        assert (mine.double() - theirs).abs().max() <= tolerance * max(theirs.abs().max(), 1e-3)


@pytest.mark.parametrize("hidden", [24, 6, 7])
@pytest.mark.parametrize("choose", IMBALANCE.values(), ids=IMBALANCE)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_they_are_a_loop_over_experts(dtype, choose, hidden):
    module, given = experts(hidden, dtype), routes(choose)
    given = Routes(*(each.to(dtype) if each.is_floating_point() else each for each in vars(given).values()))
    exact = Routes(*(each.double() if each.is_floating_point() else each for each in vars(given).values()))
    true = with_gradients(module, exact, lambda given: one_by_one(module, given))
    assert_close(run(module, given), true, TOLERANCE[dtype])


@pytest.mark.parametrize("k", [1, 3, EXPERTS])
def test_any_number_of_experts_a_token(k):
    module, given = experts(), routes(lambda scores: scores, k=k)
    assert_close(run(module, given), with_gradients(module, given, lambda given: one_by_one(module, given)), 1e-12)


def test_without_tokens_there_is_nothing_and_no_error():
    module, given = experts(), routes(lambda scores: scores, batch=0)
    y, *grads = run(module, given)
    assert y.shape == (0, 6, DIM)
    assert not any(grad.any() for grad in grads)


def test_runs_repeat_to_the_last_bit():
    module, given = experts(dtype=torch.float64), routes(lambda scores: scores, k=3)
    assert all(torch.equal(a, b) for a, b in zip(run(module, given), run(module, given), strict=True))


def spread(ep: int, module: Experts, given: Callable[[int], Routes]) -> list[list[Tensor]]:
    """`run` of each rank of an axis, each with some of the experts and the routes that `given` says."""

    def program(rank: int) -> list[Tensor]:
        group = axis("tp")
        mine = Experts.Config(experts=EXPERTS, dim=DIM, hidden=module.config.hidden).build()
        for name in STATES:
            setattr(mine, name, torch.nn.Parameter(getattr(module, name).detach().chunk(ep)[group.index]))
        layout = SpmdLayout({"tp": S(0)})
        shapes = {name: getattr(module, name).shape for name in STATES}
        mine.localize(Place(shapes, dict.fromkeys(STATES, layout), {}, {"tp": group}))
        assert isinstance(mine.dispatch, AllToAll)
        return run(mine, given(group.index))

    return run_ranks(ParallelismDims(tp=ep), program)


@pytest.mark.parametrize("ep", [2, 4, 8])
@pytest.mark.parametrize("choose", IMBALANCE.values(), ids=IMBALANCE)
def test_spread_over_ranks_they_are_those_of_one_device(choose, ep):
    """Each rank has other tokens and other experts; a token's outcome and gradient stay where it is."""
    batch = max(4, ep)
    module, given = experts(), routes(choose if batch == 4 else IMBALANCE["as it comes"], batch)
    found = spread(ep, module, lambda place: given.parts(ep, place))
    assert_close([torch.cat(parts) for parts in zip(*found, strict=True)], run(module, given), 1e-12)


def test_ranks_with_other_numbers_of_tokens_and_with_none():
    module, given = experts(), routes(lambda scores: scores)
    shares = [[0, 4], [3, 1, 0, 0]]
    for share in shares:
        found = spread(
            len(share),
            module,
            lambda place, share=share: Routes(*(each.split(share)[place] for each in vars(given).values())),
        )
        assert_close([torch.cat(parts) for parts in zip(*found, strict=True)], run(module, given), 1e-12)


@pytest.mark.parametrize("tp", [2, 4])
def test_with_every_expert_cut_over_ranks_their_parts_add_up(tp):
    """Columns of w1 and w3 with rows of w2: outcomes and gradients of what all ranks have are parts of a sum."""
    module, given = experts(), routes(IMBALANCE["an expert without tokens"])
    dims = {"w1": 1, "w2": 2, "w3": 1}
    found = []
    for place in range(tp):
        mine = Experts.Config(experts=EXPERTS, dim=DIM, hidden=24 // tp).build()
        for name, dim in dims.items():
            setattr(mine, name, torch.nn.Parameter(getattr(module, name).detach().chunk(tp, dim)[place]))
        found.append(run(mine, given))
    y, of_x, of_weights, *of_states = zip(*found, strict=True)
    sums = [sum(parts) for parts in (y, of_x, of_weights)]
    pieces = [torch.cat(parts, dim) for parts, dim in zip(of_states, dims.values(), strict=True)]
    assert_close([*sums, *pieces], run(module, given), 1e-12)


def recomputed(module: Experts, given: Routes) -> Tensor:
    return checkpoint(module, given.x, given.weights, given.chosen, use_reentrant=False)


def test_a_block_that_is_computed_again_for_backward_gives_the_same_bits():
    """Tokens travel again then, on all ranks."""
    given = routes(IMBALANCE["a rank without tokens"])

    def program(rank: int) -> bool:
        group = axis("tp")
        mine = Experts.Config(experts=EXPERTS, dim=DIM, hidden=24).build()
        for name, states in vars(experts())["_parameters"].items():
            setattr(mine, name, torch.nn.Parameter(states.detach().chunk(2)[group.index]))
        mine.dispatch = AllToAll(EXPERTS, group)
        part = given.parts(2, group.index)
        again = with_gradients(mine, part, lambda given: recomputed(mine, given))
        return all(torch.equal(a, b) for a, b in zip(again, run(mine, part), strict=True))

    assert run_ranks(ParallelismDims(tp=2), program) == [True, True]


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_types_say_whose_gradients_are_to_be_summed(device):
    """Over efsdp, whose ranks have the same experts; not over ep, whose ranks have others."""
    view = mesh(efsdp=2, ep=2)
    module = Experts.Config(experts=EXPERTS // 2, dim=DIM, hidden=24).build().to(device)
    module.dispatch = AllToAll(EXPERTS, view["ep"])
    given = routes(lambda scores: scores)
    x, weights = (each.float().to(device).requires_grad_() for each in (given.x, given.weights))
    chosen = given.chosen.to(device)
    tokens, states = {"efsdp": spmd.V, "ep": spmd.V}, {"efsdp": spmd.R, "ep": spmd.V}
    with spmd.set_current_mesh(view), spmd.typecheck(), spmd.local():
        for each in (x, weights, chosen):
            spmd.assert_type(each, tokens)
        for param in module.parameters():
            spmd.assert_type(param, states)
        y = module(x, weights, chosen)
        spmd.assert_type(y, tokens)
        loss = y.sum()
        for name in view:
            loss = spmd.reinterpret(loss, name, src=spmd.V, dst=spmd.P)
        loss.backward()
        for each in (x, weights):
            spmd.assert_type(each.grad, tokens)
        for param in module.parameters():
            spmd.assert_type(param.grad, {"efsdp": spmd.P, "ep": spmd.V})


def test_first_weights_depend_on_name_and_place_alone():
    module = experts()
    for name, std in (("w1", 0.3), ("w2", 0.3), ("w3", 0.3)):
        whole = getattr(module, name).detach()
        half = torch.empty_like(whole[4:])
        rest = [range(n) for n in whole.shape[1:]]
        TruncatedNormal(std).fill(half, [range(4, 8), *rest], whole.shape, key_of(0, name))
        assert torch.equal(half, whole[4:])
    assert not torch.equal(module.w1, module.w3)


def test_the_second_layer_has_a_deviation_of_its_own():
    found = Experts.Config(experts=2, dim=64, hidden=64, std=0.5, std_out=0.01).build().initializers()
    assert {name: each.std for name, each in found.items()} == {"w1": 0.5, "w2": 0.01, "w3": 0.5}
    assert math.isclose(found["w2"].values(1, torch.arange(4096)).std().item(), 0.01, rel_tol=0.05)


def test_experts_that_do_not_split_are_refused_with_the_legal_degrees():
    config = Experts.Config(experts=6, dim=DIM, hidden=4)
    assert config.problems("experts", ParallelismDims(tp=2, ep=2)) == []
    (problem,) = config.problems("blocks.0.experts", ParallelismDims(dp_shard=4, ep=4))
    assert (problem.where, problem.fix) == ("blocks.0.experts", "--parallel.ep 1 or 2")


def test_experts_are_split_over_one_axis():
    module = experts()
    layout = SpmdLayout({"dp": S(0), "tp": S(0)})
    with pytest.raises(SpmdTypeError, match="split over dp, tp"):
        module.localize(Place({"w1": (8, 24, 16)}, {"w1": layout}, {}, {}))

"""A type stays with a tensor through attention, depthwise convolution, copies, files, modules and optimizers."""

from __future__ import annotations

import copy
import io
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import meshwright.spmd as spmd
from tests.cases.agreement import Held, agrees
from tests.check.judged import judged, on, refusal, says
from tests.denotation import denoted, local, sample

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S
AXES = st.sampled_from(["tp", "cp", "dp"])


def by_hand(q, k, v):
    length = q.shape[-2]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


def masked(q, k, v):
    length = q.shape[-2]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(length, length, dtype=torch.bool).tril())


ATTENTIONS = {
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "by name": lambda q, k, v: F.scaled_dot_product_attention(query=q, key=k, value=v, is_causal=True),
    "scaled": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25),
    "all": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    "masked": masked,
    "by hand": by_hand,
    "einsum": lambda q, k, v: torch.einsum("bhqk,bhkd->bhqd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v),
    "of torch.ops": lambda q, k, v: torch.ops.aten.scaled_dot_product_attention(q, k, v, is_causal=True),
}


@settings(max_examples=20)
@given(
    axis=AXES,
    degree=st.sampled_from([1, 2, 3]),
    name=st.sampled_from(sorted(ATTENTIONS)),
    cut=st.sampled_from([0, 1]),
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 4), st.integers(1, 3)),
    seed=st.integers(0, 99),
)
def test_attention_with_heads_or_batch_split(axis, degree, name, cut, sizes, seed):
    shape = tuple(n * (degree if dim == cut else 1) for dim, n in enumerate(sizes))
    q, k, v = (Held(sample(shape, seed + n), {axis: S(cut)}) for n in range(3))
    assert agrees(lambda q, k, v: ATTENTIONS[name](q, k, v), on(axis, degree), q=q, k=k, v=v) == {axis: S(cut)}


@pytest.mark.parametrize("tp", [1, 2])
def test_attention_of_queries_that_share_keys(tp):
    q, k, v = (Held(sample((2, heads * tp, 4, 3), n), {"tp": S(1)}) for n, heads in enumerate((4, 2, 2)))
    program = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)  # noqa: E731
    assert agrees(program, on("tp", tp), q=q, k=k, v=v) == {"tp": S(1)}


@settings(max_examples=12)
@given(
    axis=AXES,
    degree=st.sampled_from([1, 2, 3]),
    channels=st.integers(2, 3),
    kernel=st.integers(1, 3),
    causal=st.booleans(),
    shifted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_depthwise_convolution_over_split_channels(axis, degree, channels, kernel, causal, shifted, seed):
    count = channels * degree
    x = Held(sample((2, count, 5), seed), {axis: S(1)})
    weight = Held(sample((count, 1, kernel), seed + 1), {axis: S(0)})
    bias = Held(sample((count,), seed + 2), {axis: S(0)})

    def program(x, weight, bias):
        out = F.conv1d(x, weight, bias if shifted else None, padding=kernel - 1, groups=x.shape[1])
        return out[..., : x.shape[-1]] if causal else out

    assert agrees(program, on(axis, degree), x=x, weight=weight, bias=bias) == {axis: S(1)}


def through_a_file(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "deepcopy of a dict": lambda x: copy.deepcopy({"x": x})["x"],
    "copy": copy.copy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "torch.save": through_a_file,
    "cpu": lambda x: x.cpu(),
    "to a device": lambda x: x.to("cpu"),
    "to a device, later": lambda x: x.to(torch.device("cpu"), non_blocking=True),
    "to a dtype": lambda x: x.to(torch.float32),
    "to, by name": lambda x: x.to(device="cpu", dtype=torch.float32),
    "to like another": lambda x: x.to(torch.ones(1)),
    "to, copied": lambda x: x.to(torch.float64, copy=True),
    "double": lambda x: x.double(),
    "float": lambda x: x.float(),
    "bfloat16": lambda x: x.bfloat16(),
    "type_as": lambda x: x.type_as(torch.ones(1)),
    "meta": lambda x: x.to("meta"),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "contiguous": lambda x: x.contiguous(),
    "data": lambda x: x.data,
    "Parameter": lambda x: nn.Parameter(x.detach()),
    "Parameter without gradient": lambda x: nn.Parameter(x.detach(), requires_grad=False),
    "Parameter of a Parameter": lambda x: nn.Parameter(nn.Parameter(x.detach())),
    "Buffer": lambda x: nn.Buffer(x.detach()),
    "ParameterList": lambda x: nn.ParameterList([nn.Parameter(x.detach())])[0],
    "deepcopy of a Parameter": lambda x: copy.deepcopy(nn.Parameter(x.detach())),
    "pickle of a Parameter": lambda x: pickle.loads(pickle.dumps(nn.Parameter(x.detach()))),
    "torch.save of a Parameter": lambda x: through_a_file(nn.Parameter(x.detach())),
}


@settings(max_examples=40)
@given(
    axis=AXES,
    name=st.sampled_from(sorted(COPIES)),
    kind=st.sampled_from([R, I, S(0), S(1), V]),
    wants=st.booleans(),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_a_copy_has_the_type(axis, name, kind, wants, shape):
    with spmd.set_current_mesh(spmd.mesh(**{axis: 2})), spmd.typecheck():
        x = spmd.assert_type(torch.ones(shape, dtype=torch.float64, requires_grad=wants), {axis: kind})
        copied = COPIES[name](x)
        assert spmd.layout_of(copied) == {axis: kind}
        assert spmd.layout_of(x * 2) == {axis: kind}


@pytest.mark.parametrize("name", sorted(COPIES))
def test_a_copy_of_what_is_owed_is_owed(name):
    """Where it does not cut the parts of the sum to a lower precision."""
    if name in ("to a dtype", "to, by name", "to like another", "float", "bfloat16", "type_as"):
        refusal(lambda rank: COPIES[name](spmd.assert_type(torch.ones(2).double(), {"tp": P})), on("tp", 2))
        return
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck():
        x = spmd.assert_type(torch.ones(2, dtype=torch.float64), {"tp": P})
        assert spmd.layout_of(COPIES[name](x)) == {"tp": P}


def layer(kind):
    made = nn.Linear(3, 4, dtype=torch.float64)
    made.register_buffer("scale", spmd.assert_type(torch.ones(4, 3, dtype=torch.float64), {"tp": kind}))
    spmd.assert_type(made.weight, {"tp": kind})
    spmd.assert_type(made.bias, {"tp": kind})
    return made


def loaded(assign):
    def load(module):
        other = layer(spmd.layout_of(module.weight)["tp"])
        other.load_state_dict(module.state_dict(), assign=assign)
        return other

    return load


MODULES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": through_a_file,
    "to a dtype": lambda m: m.to(torch.float32),
    "to a device and a dtype": lambda m: m.to("cpu", torch.float32),
    "double": lambda m: m.double(),
    "float": lambda m: m.float(),
    "half": lambda m: m.half(),
    "cpu": lambda m: m.cpu(),
    "requires_grad_": lambda m: m.requires_grad_(False),
    "load_state_dict": loaded(assign=False),
    "load_state_dict, assigned": loaded(assign=True),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("kind", [R, I, S(0)])
def test_a_module_has_them(name, kind):
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck():
        module = MODULES[name](layer(kind))
        for state in (module.weight, module.bias, module.scale):
            assert spmd.layout_of(state) == {"tp": kind}


@pytest.mark.parametrize("kind", [R, I, S(0)])
@pytest.mark.parametrize("keep_vars", [False, True])
def test_so_has_its_state_dict(kind, keep_vars):
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck():
        state = layer(kind).state_dict(keep_vars=keep_vars)
        assert {name: dict(spmd.layout_of(x)) for name, x in state.items()} == {
            name: {"tp": kind} for name in ("weight", "bias", "scale")
        }
        assert spmd.layout_of(state["weight"] * 2) == {"tp": kind}


OPTIMIZERS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW]
HOW = [{"foreach": False}, {"foreach": True}, {"fused": True}]


def stepped(make, kind, whole, dims, reduce=True):
    """The weights after three steps of an optimizer, from sum(w^4) of tokens that are split where the weight is R."""

    def program(rank):
        weight = spmd.assert_type(local({"tp": kind}, whole, dims, rank).requires_grad_(), {"tp": kind})
        optimizer = make([weight])
        for _ in range(3):
            optimizer.zero_grad()
            loss = weight.square().square().sum()
            loss = spmd.convert(loss, "tp", src=R, dst=P) if kind is R else loss
            loss.backward()
            if kind is R and reduce:
                weight.grad = spmd.all_reduce(weight.grad, "tp", src=P, dst=R)
            optimizer.step()
        assert spmd.layout_of(weight) == {"tp": kind}
        for state in optimizer.state[weight].values():
            assert not isinstance(state, torch.Tensor) or state.dim() == 0 or set(spmd.layout_of(state)) == {"tp"}
        return weight.detach()

    return program


CASES = [(optimizer, how, kind) for optimizer in OPTIMIZERS for how in HOW for kind in (R, I, S(0))]


@pytest.mark.parametrize(("optimizer", "how", "kind"), CASES, ids=str)
def test_an_optimizer_steps_on_reduced_gradients(optimizer, how, kind):
    make = lambda params: optimizer(params, lr=0.01, **how)  # noqa: E731
    whole = sample((4, 2), 3)
    alone = whole.clone().requires_grad_()
    single = make([alone])
    for _ in range(3):
        single.zero_grad()
        alone.square().square().sum().backward()
        single.step()
    dims = on("tp", 2)
    found = denoted({"tp": kind}, judged(stepped(make, kind, whole, dims), dims), dims)
    torch.testing.assert_close(found, alone.detach())


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_none_takes_a_gradient_that_is_still_owed(optimizer, how):
    program = stepped(lambda params: optimizer(params, lr=0.01, **how), R, sample((4,), 3), on("tp", 2), reduce=False)
    problem = refusal(program, on("tp", 2))
    says(problem, "tp", "P, R", "P -> R: p.grad = all_reduce(p.grad, 'tp', src=P, dst=R)")
    assert f"{optimizer.__name__}.step()" in problem.what

"""What is refused is refused in one way: an `SpmdTypeError` with a reason and a fix, whatever the operation.

argmax, mean, sort, norms, windows and the like over a split dim; R.add_(S); squeeze of a split dim of local length 1;
meshgrid of two splits; a dim or an axis that is not there; lengths that do not divide.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from tests.cases.agreement import Held, agrees, alternatives, pasted
from tests.check.judged import judged, on, refusal, says
from tests.denotation import sample

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S

ALONG = {
    "argmax": lambda input: input.argmax(0),
    "argmax of all": lambda input: input.argmax(),
    "argmax, by name": lambda input: torch.argmax(input, dim=0, keepdim=True),
    "argmin": lambda input: input.argmin(0),
    "max": lambda input: input.max(0)[0],
    "max of all": lambda input: input.max(),
    "amax": lambda input: input.amax(0),
    "min": lambda input: input.min(dim=0)[1],
    "mean": lambda input: input.mean(0),
    "mean of all": lambda input: input.mean(),
    "mean, by name": lambda input: torch.mean(input, axis=0),
    "mean of torch.ops": lambda input: torch.ops.aten.mean.dim(input, [0]),
    "median": lambda input: input.median(0)[0],
    "mode": lambda input: input.mode(0)[0],
    "quantile": lambda input: input.quantile(0.5, 0),
    "kthvalue": lambda input: input.kthvalue(1, 0)[0],
    "std": lambda input: input.std(0),
    "var": lambda input: input.var(0, correction=0),
    "var_mean": lambda input: torch.var_mean(input, 0)[0],
    "norm": lambda input: input.norm(),
    "vector_norm": lambda input: torch.linalg.vector_norm(input, dim=0),
    "prod": lambda input: input.prod(0),
    "logsumexp": lambda input: input.logsumexp(0),
    "any": lambda input: (input > 0).any(0),
    "all": lambda input: (input > 0).all(),
    "sort": lambda input: input.sort(0)[0],
    "argsort": lambda input: input.argsort(0),
    "topk": lambda input: input.topk(1, 0)[0],
    "cumsum": lambda input: input.cumsum(0),
    "cumprod": lambda input: input.cumprod(0),
    "cummax": lambda input: input.cummax(0)[0],
    "softmax": lambda input: input.softmax(0),
    "log_softmax": lambda input: F.log_softmax(input, 0),
    "flip": lambda input: input.flip(0),
    "roll": lambda input: input.roll(1, 0),
    "roll of all": lambda input: input.roll(1),
    "diff": lambda input: input.diff(dim=0),
    "chunk": lambda input: input.chunk(2)[0],
    "split": lambda input: input.split(1)[0],
    "unbind": lambda input: input.unbind()[0],
    "narrow": lambda input: input.narrow(0, 0, 1),
    "slice": lambda input: input[:1],
    "last": lambda input: input[-1],
    "select": lambda input: input.select(0, 0),
    "repeat": lambda input: input.repeat(2, 1),
    "pad": lambda input: F.pad(input, (0, 0, 1, 0)),
    "unfold": lambda input: input.unfold(0, 2, 1),
    "tril": lambda input: input.tril(),
    "diagonal": lambda input: input.diagonal(),
    "layer_norm": lambda input: F.layer_norm(input, tuple(input.shape)),
    "normalize": lambda input: F.normalize(input, dim=0),
    "mse_loss": lambda input: F.mse_loss(input, input * 2),
    "fft": lambda input: torch.fft.fft(input, dim=0).real,
}


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(ALONG)),
    axis=st.sampled_from(["tp", "cp", "dp"]),
    degree=st.sampled_from([2, 3]),
    each=st.integers(2, 3),
    width=st.integers(2, 4),
    wants=st.booleans(),
)
def test_what_needs_a_dim_whole(name, axis, degree, each, width, wants):
    dims, whole = on(axis, degree), sample((each * degree, width), 1)
    held = Held(whole, {axis: S(0)}, wants=wants and name not in ("any", "all"))
    problem = refusal(lambda rank: ALONG[name](held.on_rank(dims, rank)), dims)
    says(problem, axis, "S(0)", "all_gather(")
    ((fix,),) = alternatives(problem.fix)
    name_ = fix[fix.index("(") + 1 : fix.index(",")]
    found = judged(lambda rank: ALONG[name](pasted(fix, {name_: held.on_rank(dims, rank)})[name_]), dims)
    expected = ALONG[name](whole)
    for each_ in found:
        torch.testing.assert_close(each_.detach(), expected)


@pytest.mark.parametrize(
    "read", [lambda x: x.unique(), lambda x: x.nonzero(), lambda x: x.tolist(), lambda x: x.sum().item()]
)
def test_what_is_read_of_one(read):
    x = Held(sample((4, 2), 1), {"tp": S(0)}, wants=False)
    problem = refusal(lambda rank: read(x.on_rank(on("tp", 2), rank)), on("tp", 2))
    assert "axis 'tp'" in problem.what
    assert problem.fix


PAIRS = {
    "add_": lambda a, b: a.add_(b),
    "operator": lambda a, b: a.__iadd__(b),
    "mul_": lambda a, b: a.mul_(b),
    "copy_": lambda a, b: a.copy_(b),
    "sub_, by name": lambda a, b: a.sub_(other=b),
    "out=": lambda a, b: torch.add(a, b, out=a),
    "torch.ops": lambda a, b: torch.ops.aten.add_.Tensor(a, b),
    "foreach": lambda a, b: torch._foreach_add_([a], [b]),
    "add": lambda a, b: a + b,
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(("kind", "other"), [(R, S(0)), (I, S(0)), (S(0), R), (S(0), S(1)), (R, P), (P, S(0))])
def test_types_that_do_not_meet(name, kind, other):
    def program(rank):
        a, b = (Held(torch.ones(8, 8), {"tp": each}, wants=False).on_rank(on("tp", 2), rank) for each in (kind, other))
        PAIRS[name](a, b)

    says(refusal(program, on("tp", 2)), "tp", f"{kind!r}, {other!r}")


SQUEEZES = {
    "squeeze": lambda x: x.squeeze(0),
    "of all": lambda x: x.squeeze(),
    "of several": lambda x: x.squeeze((0,)),
    "by name": lambda x: torch.squeeze(x, dim=0),
    "in place": lambda x: x.squeeze_(0),
    "select": lambda x: x[0],
}


@pytest.mark.parametrize("name", SQUEEZES)
@pytest.mark.parametrize("degree", [2, 3])
def test_a_split_dim_of_one_local_position(name, degree):
    x = Held(sample((degree, 3), 1), {"tp": S(0)}, wants=False)
    says(refusal(lambda rank: SQUEEZES[name](x.on_rank(on("tp", degree), rank)), on("tp", degree)), "tp", "S(0)")
    if name != "select":
        assert agrees(lambda x: x.unsqueeze(0).squeeze(0), on("tp", degree), x=x) == {"tp": S(0)}


@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_a_grid_of_two_splits(indexing):
    a, b = (Held(sample((4,), n), {"tp": S(0)}) for n in (1, 2))
    program = lambda a, b: torch.meshgrid(a, b, indexing=indexing)[0]  # noqa: E731
    says(
        refusal(lambda rank: program(a.on_rank(on("tp", 2), rank), b.on_rank(on("tp", 2), rank)), on("tp", 2)),
        "tp",
        "S(0)",
    )
    other = Held(sample((3,), 2), {"tp": R}, wants=False)
    kind = S(0) if indexing == "ij" else S(1)
    assert agrees(program, on("tp", 2), a=a, b=other) == {"tp": kind}


def x(*shape, **kinds):
    return spmd.assert_type(torch.ones(shape), kinds)


NONSENSE = {
    "a dim that is not there": lambda: x(4, tp=S(1)),
    "a shard of a number": lambda: x(tp=S(0)),
    "an axis that is not there": lambda: x(4, xp=R),
    "a step over an axis that is not there": lambda: spmd.all_reduce(x(4, tp=P), "xp", src=P, dst=R),
    "a step to a dim that is not there": lambda: spmd.convert(x(4, tp=R), "tp", src=R, dst=S(1)),
    "a gather of a dim that is not there": lambda: spmd.all_gather(x(4, tp=S(0)), "tp", src=S(2), dst=R),
    "a scatter to a dim that is not there": lambda: spmd.reduce_scatter(x(4, tp=P), "tp", src=P, dst=S(3)),
    "a length that does not divide": lambda: spmd.convert(x(3, tp=R), "tp", src=R, dst=S(0)),
    "a sum of a length that does not divide": lambda: spmd.reduce_scatter(x(3, tp=P), "tp", src=P, dst=S(0)),
    "an exchange of a length that does not divide": lambda: spmd.all_to_all(x(4, 3, tp=S(0)), "tp", src=S(0), dst=S(1)),
    "a list of a length that does not divide": lambda: spmd.convert(x(3, tp=R), "tp", src=R, dst=V),
    "a view across a cut": lambda: x(1, 3, tp=S(1)).view(2, 3),
    "a size of two axes in two orders": lambda: x(4, dp=S(0), tp=S(0)) + x(4, tp=S(0), dp=S(0)),
    "the outer of two axes leaves": lambda: spmd.all_gather(x(4, dp=S(0), tp=S(0)), "dp", src=S(0), dst=R),
    "a step that is none": lambda: spmd.all_reduce(x(4, tp=P), "tp", src=P, dst=S(0)),
    "no rule": lambda: torch.linalg.lstsq(x(4, 2, tp=S(0)), x(4, 1, tp=S(0))),
    "a module without a rule": lambda: torch.nn.LSTM(4, 4)(x(4, 1, 4, tp=S(0))),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nothing_else_is_raised(name):
    with spmd.set_current_mesh(spmd.mesh(dp=2, tp=2)), spmd.typecheck(), pytest.raises(spmd.SpmdTypeError) as error:
        NONSENSE[name]()
    for problem in error.value.problems:
        assert problem.what
        assert problem.why or problem.fix

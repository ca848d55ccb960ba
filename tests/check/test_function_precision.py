"""A Function may compute in a lower precision than its tensors have, or in one alone: that is no fault of backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.check.programs_alone import MESH, refused

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


def made(forward, backward, typed):
    members = {"forward": forward, "backward": backward, "spmd_typecheck": typed}
    return type("Mine", (torch.autograd.Function,), {name: staticmethod(each) for name, each in members.items()})


def of(kind, *shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(len(shape))
    return spmd.assert_type(torch.randn(shape, generator=generator).to(dtype).requires_grad_(), {"tp": kind})


def matmul(backward):
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x.float() @ w.float()).to(x.dtype)

    return made(forward, lambda ctx, g: backward(*ctx.saved_tensors, g), lambda *, x, w: x @ w)


def norm(of_x):
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            wide = x.float()
            scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            ctx.save_for_backward(x, w, scale)
            return (wide * scale).to(x.dtype) * w

        @staticmethod
        def backward(ctx, g):
            x, w, scale = ctx.saved_tensors
            normed, wide = x.float() * scale, (g * w).float()
            return of_x(normed, scale, wide).to(x.dtype), (g * normed.to(x.dtype)).flatten(0, -2).sum(0)

        @staticmethod
        def spmd_typecheck(*, x, w):
            return F.rms_norm(x, w.shape, w)

    return Norm


def swiglu(of_gate):
    class Swiglu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            ctx.save_for_backward(y)
            gate, up = y.float().chunk(2, -1)
            return (F.silu(gate) * up).to(y.dtype)

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            gate, up = y.float().chunk(2, -1)
            s, wide = torch.sigmoid(gate), g.float()
            return torch.cat([wide * up * of_gate(gate, s), wide * gate * s], -1).to(y.dtype)

        @staticmethod
        def spmd_typecheck(*, y):
            gate, up = y.chunk(2, -1)
            return F.silu(gate) * up

    return Swiglu


def looked_up(of_rows):
    class Embedding(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w, at):
            ctx.save_for_backward(at)
            ctx.rows = w.shape[0]
            return w[at]

        @staticmethod
        def backward(ctx, g):
            (at,) = ctx.saved_tensors
            return of_rows(torch.zeros(ctx.rows, g.shape[-1]), at, g), None

        @staticmethod
        def spmd_typecheck(*, w, at):
            return F.embedding(at, w)

    return Embedding


def normed(n, r, g):
    return r * (g - n * (g * n).mean(-1, keepdim=True))


def places():
    return spmd.assert_type(torch.tensor([1, 2, 3]), {"tp": I})


NORM = lambda cls, dtype: cls.apply(of(S(1), 2, 3, 8, dtype=dtype), of(R, 8, dtype=dtype))  # noqa: E731
SWIGLU = lambda cls, dtype: cls.apply(of(S(1), 2, 3, 8, dtype=dtype))  # noqa: E731
MATMUL = lambda cls, dtype: cls.apply(of(I, 3, 4, dtype=dtype), of(I, 4, 5, dtype=dtype))  # noqa: E731
LOOKED_UP = lambda cls, dtype: cls.apply(of(I, 5, 4, dtype=dtype), places())  # noqa: E731

RIGHT = {
    "a norm": (norm(normed), NORM),
    "a gate": (swiglu(lambda a, s: s * (1 + a * (1 - s))), SWIGLU),
    "a product": (
        matmul(
            lambda x, w, g: (
                (g.float() @ w.float().t()).to(x.dtype),
                (x.float().t() @ g.float()).to(w.dtype),
            )
        ),
        MATMUL,
    ),
    "a lookup": (looked_up(lambda zeros, at, g: zeros.index_add_(0, at, g.float()).to(g.dtype)), LOOKED_UP),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", RIGHT)
def test_what_computes_in_float32_inside_is_held_against_its_forward(name, dtype):
    cls, run = RIGHT[name]
    with spmd.set_current_mesh(MESH), spmd.typecheck() as report:
        run(cls, dtype)
    assert report.claims == []


def test_dtypes_that_meet_only_where_the_program_runs():
    with spmd.set_current_mesh(MESH), spmd.typecheck() as report:
        LOOKED_UP(looked_up(lambda zeros, at, g: zeros.index_add_(0, at, g)), torch.float32)
        MATMUL(matmul(lambda x, w, g: (g @ w.float().t(), x.float().t() @ g)), torch.float32)
    assert report.claims == []


WRONG = {
    "a missing term": (norm(lambda n, r, g: r * g), NORM),
    "a factor": (norm(lambda n, r, g: 1.05 * normed(n, r, g)), NORM),
    "a derivative of something else": (swiglu(lambda a, s: s), SWIGLU),
    "a transposed matrix": (
        matmul(lambda x, w, g: ((g.float() @ w.float()).to(x.dtype), (x.float().t() @ g.float()).to(w.dtype))),
        lambda cls, dtype: cls.apply(of(I, 3, 4, dtype=dtype), of(I, 4, 4, dtype=dtype)),
    ),
    "a sign": (looked_up(lambda zeros, at, g: -zeros.index_add_(0, at, g.float()).to(g.dtype)), LOOKED_UP),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_backward_is_refused_in_any_of_them(name, dtype):
    cls, run = WRONG[name]
    assert "a small step" in refused(lambda: run(cls, dtype), Code.FUNCTION).what


def kernel(x):
    """As one that was compiled for a single dtype, and looks at memory."""
    assert x.dtype == torch.float32
    with spmd.no_typecheck("a kernel"):
        return torch.from_numpy(x.detach().numpy() ** 3)


def cube(factor):
    return made(
        lambda ctx, x: (ctx.save_for_backward(x), kernel(x))[1],
        lambda ctx, g: factor * ctx.saved_tensors[0] ** 2 * g,
        lambda *, x: {"tp": S(0)},
    )


def test_what_runs_in_one_dtype_alone_is_tried_in_that():
    with spmd.set_current_mesh(MESH), spmd.typecheck() as report:
        cube(3).apply(of(S(0), 6))
    assert report.claims == []
    assert "a small step" in refused(lambda: cube(2.9).apply(of(S(0), 6)), Code.FUNCTION).what


def test_a_derivative_far_below_one_is_seen():
    def tiny(factor):
        return made(lambda ctx, x: x * 1e-7, lambda ctx, g: g * factor, lambda *, x: {"tp": S(0)})

    with spmd.set_current_mesh(MESH), spmd.typecheck():
        tiny(1e-7).apply(of(S(0), 4))
    refused(lambda: tiny(2e-7).apply(of(S(0), 4)), Code.FUNCTION)


def test_an_error_does_not_hide_behind_zeros():
    """As in the second matrix of an adapter, which is zero when training begins."""

    class Adapter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return 2 * g @ w.t(), x.t() @ g

        @staticmethod
        def spmd_typecheck(*, x, w):
            return x @ w

    def program():
        zeros = spmd.assert_type(torch.zeros(4, 5, requires_grad=True), {"tp": R})
        Adapter.apply(of(S(0), 3, 4), zeros)

    assert "a small step of x" in refused(program, Code.FUNCTION).what


def rounded(step, factor):
    """What rounds to steps of that size: a derivative shows only over many of them."""

    def forward(ctx, x):
        assert x.dtype == torch.float32
        return (x * 3 / step).round() * step

    return made(forward, lambda ctx, g: factor * g, lambda *, x: {"tp": S(0)})


def test_where_a_step_drowns_in_rounding_backward_is_taken_on_trust():
    with spmd.set_current_mesh(MESH), spmd.typecheck() as report:
        rounded(0.1, 3).apply(of(S(0), 6))
    (claim,) = report.claims
    assert claim.what == "the values of Mine.backward"
    assert "drowns in rounding" in claim.reason
    assert "a small step" in refused(lambda: rounded(10.0, 3).apply(of(S(0), 6)), Code.FUNCTION).what
    assert "a small step" in refused(lambda: rounded(1e-6, 2.5).apply(of(S(0), 6)), Code.FUNCTION).what


def test_digits_that_a_kernel_drops_unseen_are_no_fault_of_backward():
    """It takes any dtype, and multiplies in half precision: the smallest steps change nothing."""

    def half(ctx, x):
        with spmd.no_typecheck("a kernel"):
            return torch.from_numpy((x.detach().numpy().astype("float16") * 3).astype("float32")).to(x.dtype)

    def tripled(factor):
        return made(half, lambda ctx, g: factor * g, lambda *, x: {"tp": S(0)})

    with spmd.set_current_mesh(MESH), spmd.typecheck():
        tripled(3).apply(of(S(0), 6))
    assert "a small step" in refused(lambda: tripled(6).apply(of(S(0), 6)), Code.FUNCTION).what


def test_bits_of_a_tensor_are_read_in_the_dtype_that_it_has():
    """Negation by the sign bit, which stands elsewhere in double precision."""

    def flip(ctx, x):
        return (x.detach().view(torch.int32) ^ -(2**31)).view(torch.float32)

    def negated(factor):
        def forward(ctx, x):
            with spmd.no_typecheck("it is -x"):
                return flip(ctx, x)

        return made(forward, lambda ctx, g: factor * g, lambda *, x: {"tp": S(0)})

    with spmd.set_current_mesh(MESH), spmd.typecheck() as report:
        negated(-1).apply(of(S(0), 6))
    assert report.claims == []
    refused(lambda: negated(1).apply(of(S(0), 6)), Code.FUNCTION)

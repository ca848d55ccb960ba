"""Samples of ops on lists of tensors."""

from __future__ import annotations

import torch

from tests.oracle.sample import Sample, of_list, positive, real, sample

X, Y = (12, 12), (4, 12)
STILL = real(*X, wants=False)


def of_pairs(f):
    return lambda x, y: f([x], [y])


def clipped(x, y):
    """Gradients of two parameters, clipped to a norm of one."""
    norms = torch._foreach_norm([x, y])
    total = torch.linalg.vector_norm(torch.stack(norms))
    return torch._foreach_mul([x, y], (1.0 / total).clamp(max=1.0))


def zeroed(x):
    x = x * 1
    torch._foreach_zero_([x])
    return x


LISTS: list[Sample] = [
    *(
        sample(
            f"_foreach_{name}",
            of_list(getattr(torch, f"_foreach_{name}")),
            positive(*X),
            positive(*Y),
            mixed=False,
        )
        for name in [
            "abs",
            "ceil",
            "cos",
            "erf",
            "exp",
            "expm1",
            "floor",
            "lgamma",
            "log",
            "log10",
            "log1p",
            "log2",
            "neg",
            "reciprocal",
            "round",
            "rsqrt",
            "sigmoid",
            "sign",
            "sin",
            "sqrt",
            "tan",
            "tanh",
            "trunc",
        ]
    ),
    *(
        sample(f"_foreach_{name}", of_pairs(getattr(torch, f"_foreach_{name}")), X, X)
        for name in ["add", "sub", "mul", "div", "maximum", "minimum", "clamp_max", "clamp_min"]
    ),
    sample("_foreach_addcdiv", lambda x, y, z: torch._foreach_addcdiv([x], [y], [z], value=2.0), X, X, positive(*X)),
    sample("_foreach_addcmul", lambda x, y, z: torch._foreach_addcmul([x], [y], [z], value=2.0), X, X, X),
    sample("_foreach_lerp", lambda x, y: torch._foreach_lerp([x], [y], 0.5), X, X),
    sample("_foreach_pow", lambda x: torch._foreach_pow([x], 2.0), X),
    sample("_foreach_norm", lambda x, y: torch._foreach_norm([x, y]), X, Y, mixed=False),
    sample("_foreach_copy", lambda x, y: torch._foreach_copy_([x * 1], [y]), STILL, STILL, mixed=False),
    sample("_foreach_zero", zeroed, X),
    sample("_foreach_norm", clipped, STILL, real(*Y, wants=False), mixed=False),
]

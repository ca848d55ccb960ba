"""Every pointwise rule, on sampled shapes and layouts, against one device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.check.formula import Formula
from meshwright.check.rules_pointwise import FORMULAS, SILENT
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, V
from meshwright.types.layout import SpmdLayout
from tests.check.oracle import GRID, TP, Given, positive, verdict

CALLS = {
    "where": (3, lambda condition, x, y: torch.where(condition > 4, x, y)),
    "masked_fill": (2, lambda x, mask: x.masked_fill(mask > 4, 0.0)),
    "clamp": (1, lambda x: torch.clamp(x, 2, 5)),
    "clip": (2, lambda x, low: torch.clip(x, low.detach(), low.detach() + 3)),
    "rsub": (2, torch.rsub),
    "acosh": (1, lambda x: torch.acosh(x + 1)),
    "arccosh": (1, lambda x: torch.arccosh(x + 1)),
    "complex": (2, lambda x, y: torch.complex(x, y).real),
    "polar": (2, lambda x, y: torch.polar(x, y).real),
    "imag": (2, lambda x, y: torch.imag(torch.complex(x, y))),
    "threshold": (1, lambda x: F.threshold(x, 2, 1)),
    "heaviside": (2, lambda x, y: torch.heaviside(x.detach() - 3, y.detach())),
    **{
        name: (1, lambda x, name=name: getattr(torch, name)(x * 0.05 + 0.1))
        for name in ("acos", "asin", "atanh", "arccos", "arcsin", "arctanh", "erfinv", "logit")
    },
    "rdiv": (2, torch.Tensor.__rdiv__),
    "rpow": (2, torch.Tensor.__rpow__),
    "floor_divide": (2, lambda x, y: torch.floor_divide(x.detach(), y.detach())),
    "rfloor_divide": (2, lambda x, y: torch.Tensor.__rfloordiv__(x.detach(), y.detach())),
    "clamp_min": (2, lambda x, low: torch.clamp_min(x, low.detach())),
    "clamp_max": (2, lambda x, high: torch.clamp_max(x, high.detach())),
    "lerp": (3, torch.lerp),
    "bitwise_not": (1, lambda x: ~x.long()),
    **{
        name: (2, lambda x, y, name=name: getattr(torch, name)(x.long(), y.long()))
        for name in [
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            "bitwise_left_shift",
            "bitwise_right_shift",
            "gcd",
            "lcm",
        ]
    },
}
"""Calls that need other than plain tensors."""
NAMED = {**FORMULAS, **SILENT}


def function(name):
    for space in (torch, F, torch.special):
        if hasattr(space, name):
            return getattr(space, name)
    return getattr(torch.Tensor, name)


@st.composite
def operands(draw: st.DrawFn, count: int) -> list[Given]:
    """Tensors that broadcast against each other, with layouts on tp alone or on dp and tp."""
    dims = draw(st.sampled_from((TP, GRID)))
    shape = draw(st.lists(st.sampled_from((1, 4, 8)), min_size=1, max_size=3))
    found = []
    listed = draw(st.sampled_from(("", "", "tp")))
    for number in range(count):
        kept = [
            draw(st.sampled_from((length, length, length, 1)))
            for length in shape[draw(st.integers(0, len(shape) - 1)) :]
        ]
        types = {}
        for axis in ("tp",) if dims is TP else draw(st.permutations(("dp", "tp"))):
            cuts = [S(dim) for dim, length in enumerate(kept) if length > 1]
            types[axis] = draw(st.sampled_from((R, R, I, P, *([V] * 3 if axis == listed else cuts * 2))))
        layout = SpmdLayout(types)
        lists = [2] if V in types.values() else []
        found.append(Given(positive(*lists, *kept, seed=number), layout, draw(st.booleans())))
    return [found, dims]


def tensor_arguments(text: str) -> int:
    formula = Formula.read(text)
    used = {name for product in formula.products for name, _ in product}
    return len([name for name in formula.names if name in used - {"alpha", "value", "min", "max"}])


@pytest.mark.parametrize("name", NAMED)
def test_an_accepted_call_agrees_with_one_device(name):
    count, call = CALLS.get(name) or (tensor_arguments(NAMED[name]), function(name))
    accepted = 0

    @settings(max_examples=8 if count == 1 else 25)
    @given(drawn=operands(count))
    def sampled(drawn):
        nonlocal accepted
        given_, dims = drawn
        accepted += not isinstance(verdict(call, given_, dims), SpmdTypeError)

    sampled()
    assert accepted > 0

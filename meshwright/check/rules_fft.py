"""Fourier transforms: along dims that are whole; linear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch

from meshwright.check.algebra import Result
from meshwright.check.operand import Operand
from meshwright.check.rule import INFER, RULES, Pure
from meshwright.check.rules_along import along
from meshwright.check.term import linear


def _line(name: str, input: Operand, n: int | None = None, dim: int = -1, norm: str | None = None) -> Result:
    """Along one dim."""
    return Result(along(name, input, dim, linear()).tag, None)


def _plane(
    name: str, input: Operand, s: Sequence[int] | None = None, dim: Sequence[int] = (-2, -1), norm: str | None = None
) -> Result:
    """Along two dims."""
    return Result(along(name, input, dim, linear()).tag, None)


def _all(
    name: str, input: Operand, s: Sequence[int] | None = None, dim: Sequence[int] | None = None, norm: str | None = None
) -> Result:
    """Along the named dims, or all, or the last ones of which lengths are named."""
    count = len(input.shape)
    dims = dim if dim is not None else range(count - (count if s is None else len(s)), count)
    return Result(along(name, input, dims, linear()).tag, None)


def _shifted(name: str, input: Operand, dim: Any = None) -> Result:
    """Positions change places along the named dims, or all."""
    return along(name, input, range(len(input.shape)) if dim is None else dim, linear())


TRANSFORMS: Final[dict[str, Callable[..., Result]]] = {
    **dict.fromkeys(["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"], _line),
    **dict.fromkeys(["fft2", "ifft2", "rfft2", "irfft2"], _plane),
    **dict.fromkeys(["fftn", "ifftn", "rfftn", "irfftn"], _all),
    **dict.fromkeys(["fftshift", "ifftshift"], _shifted),
}

for _name, _infer in TRANSFORMS.items():
    INFER[_name] = partial(_infer, _name)
    RULES[getattr(torch.fft, _name)] = Pure(_name, INFER[_name])

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


def _transformed(name: str, input: Operand, dims: Sequence[int], wanted: Sequence[int | None]) -> Result:
    """Along `dims`, of which the last is the one that real numbers halve. wanted: lengths, or None."""
    count = len(input.shape)
    at = [dim % max(count, 1) for dim in dims]
    halved = name.startswith(("rfft", "ihfft"))
    doubled = name.startswith(("irfft", "hfft"))
    lengths = {}
    for dim, length in zip(at, wanted, strict=True):
        long = input.whole[dim] if length is None else length
        if dim == at[-1] and halved:
            long = long // 2 + 1
        elif dim == at[-1] and doubled and length is None:
            long = 2 * (long - 1)
        lengths[dim] = long
    return along(name, input, at, linear(), lengths=lengths)


def _line(name: str, input: Operand, n: int | None = None, dim: int = -1, norm: str | None = None) -> Result:
    """Along one dim, which is whole; linear."""
    return _transformed(name, input, (dim,), (n,))


def _plane(
    name: str, input: Operand, s: Sequence[int] | None = None, dim: Sequence[int] = (-2, -1), norm: str | None = None
) -> Result:
    """Along two dims, which are whole; linear."""
    return _transformed(name, input, dim, s or (None,) * len(dim))


def _all(
    name: str, input: Operand, s: Sequence[int] | None = None, dim: Sequence[int] | None = None, norm: str | None = None
) -> Result:
    """Along the named dims, or all, or the last ones of which lengths are named; they are whole; linear."""
    count = len(input.shape)
    dims = tuple(dim) if dim is not None else tuple(range(count - (count if s is None else len(s)), count))
    return _transformed(name, input, dims, s or (None,) * len(dims))


def _shifted(name: str, input: Operand, dim: Any = None) -> Result:
    """Positions change places along the named dims, or all, which are whole; linear."""
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

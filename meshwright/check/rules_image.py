"""Pooling, scaling and unfolding: along places that are whole; batch and channels may be sharded."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch.nn.functional as F

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.rule import INFER, RULES, Pure, pure
from meshwright.check.rules_dims import demand_even, relabelled
from meshwright.check.term import Factor, Label, Sum, Term, linear, opaque


def resized(op: str, input: Operand, spatial: int, value: Sum, flows: bool = True) -> Result:
    """Along the last `spatial` dims, which are whole and get other lengths."""
    count = len(input.shape)
    labels = tuple(range(count))
    along: dict[Label, str] = dict.fromkeys(labels[count - spatial :], "")
    return Result(propagate(op, (Term("input", input, labels),), value, labels, along=along, flows=flows).tag, None)


def _averaged(name: str, spatial: int, input: Operand, *args: Any, **kwargs: Any) -> Result:
    """Means over windows of places, which are whole; linear."""
    return resized(name, input, spatial, linear())


def _largest(name: str, spatial: int, input: Operand, *args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
    """The largest of windows of places, which are whole."""
    if return_indices:
        return _with_places(name, spatial, input)
    return resized(name, input, spatial, opaque())


def _with_places(name: str, spatial: int, input: Operand, *args: Any, **kwargs: Any) -> tuple[Result, ...]:
    return tuple(resized(name, input, spatial, opaque(), flows) for flows in (True, False))


def _power(name: str, spatial: int, input: Operand, *args: Any, **kwargs: Any) -> Result:
    """Norms of windows of places, which are whole."""
    return resized(name, input, spatial, opaque())


_POOLS: Final[dict[str, Callable[..., Any]]] = {
    "avg_pool": _averaged,
    "adaptive_avg_pool": _averaged,
    "max_pool": _largest,
    "adaptive_max_pool": _largest,
    "lp_pool": _power,
}

for _pool, _infer in _POOLS.items():
    for _spatial in (1, 2, 3):
        _name = f"{_pool}{_spatial}d"
        pure(_name)(partial(_infer, _name, _spatial))
        if hasattr(F, f"{_name}_with_indices"):
            RULES[getattr(F, f"{_name}_with_indices")] = Pure(_name, partial(_with_places, _name, _spatial))


@pure("interpolate")
def interpolate(input: Operand, size: Any = None, scale_factor: Any = None, *args: Any, **kwargs: Any) -> Result:
    """To other lengths of the places, which are whole; linear."""
    return resized("interpolate", input, len(input.shape) - 2, linear())


@pure("pixel_shuffle")
def pixel_shuffle(input: Operand, upscale_factor: int) -> Result:
    """[..., C * r * r, H, W] -> [..., C, H * r, W * r]; a sharded dim stays so."""
    count, square = len(input.shape), upscale_factor**2
    demand_even("pixel_shuffle", input, count - 3, square)
    lengths = (input.whole[-3] // square, *(length * upscale_factor for length in input.whole[-2:]))
    return _rescaled("pixel_shuffle", input, lengths)


@pure("pixel_unshuffle")
def pixel_unshuffle(input: Operand, downscale_factor: int) -> Result:
    """[..., C, H * r, W * r] -> [..., C * r * r, H, W]; a sharded dim stays so."""
    count, square = len(input.shape), downscale_factor**2
    for dim in (count - 2, count - 1):
        demand_even("pixel_unshuffle", input, dim, downscale_factor)
    lengths = (input.whole[-3] * square, *(length // downscale_factor for length in input.whole[-2:]))
    return _rescaled("pixel_unshuffle", input, lengths)


def _rescaled(op: str, input: Operand, lengths: tuple[int, ...]) -> Result:
    """The last three dims with other lengths; what is sharded is so evenly."""
    count = len(input.shape)
    for dim in range(count - 3, count):
        demand_even(op, input, dim)
    labels = tuple(range(count))
    changed: dict[Label, int] = dict(zip(labels[-3:], lengths, strict=True))
    return relabelled(op, input, labels, labels, (), changed)


@pure("channel_shuffle")
def channel_shuffle(input: Operand, groups: int) -> Result:
    """Channels change places, and are whole; linear."""
    labels = tuple(range(len(input.shape)))
    return relabelled("channel_shuffle", input, labels, labels, (1,), {})


def im2col(input: Operand, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Result:
    """[n, C, H, W] -> [n, C * window, windows]; places are whole, channels may be sharded; linear."""
    if len(input.shape) != 4:
        raise TypeError("an input without a batch")
    demand_even("unfold", input, 1)
    along: dict[Label, str] = {2: "", 3: ""}
    lengths: dict[Label, int] = {1: input.whole[1] * _window(kernel_size), "windows": 0}
    terms = (Term("input", input, (0, 1, 2, 3)),)
    return Result(propagate("unfold", terms, linear(), (0, 1, "windows"), along=along, lengths=lengths).tag, None)


INFER["im2col"] = im2col
RULES[F.unfold] = Pure("unfold", im2col)


@pure("fold")
def fold(
    input: Operand, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Result:
    """[n, C * window, windows] -> [n, C, H, W]; windows are whole, channels may be sharded; linear."""
    if len(input.shape) != 3:
        raise TypeError("an input without a batch")
    window = _window(kernel_size)
    demand_even("fold", input, 1, window)
    lengths: dict[Label, int] = {1: input.whole[1] // window, "rows": 0, "columns": 0}
    one = relabelled("fold", input, (0, 1, 2), (0, 1, "rows", "columns"), (2,), lengths)
    return Result(one.tag, None)


def _window(kernel_size: Any) -> int:
    return kernel_size**2 if isinstance(kernel_size, int) else math.prod(kernel_size)


@pure("grid_sample")
def grid_sample(
    input: Operand, grid: Operand, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: Any = None
) -> Result:
    """input[n, C, ...] at grid[n, ..., coordinates] -> [n, C, ...]; places are whole; linear in the input."""
    spatial = len(input.shape) - 2
    places = tuple(("place", dim) for dim in range(spatial))
    out = tuple(("out", dim) for dim in range(spatial))
    terms = (Term("input", input, ("n", "C", *places)), Term("grid", grid, ("n", *out, "coordinates")))
    along: dict[Label, str] = dict.fromkeys((*places, "coordinates"), "")
    return propagate("grid_sample", terms, ((Factor(0), Factor(1, linear=False)),), ("n", "C", *out), along=along)


@pure("affine_grid")
def affine_grid(theta: Operand, size: Any, align_corners: Any = None) -> Result:
    """theta[n, ...] -> [n, ..., coordinates]; matrices are whole; linear."""
    spatial = theta.shape[1]
    out = tuple(("out", dim) for dim in range(spatial))
    lengths: dict[Label, int] = {**dict(zip(out, size[2:], strict=True)), "coordinates": spatial}
    labels = ("n", "rows", "columns")
    return relabelled("affine_grid", theta, labels, ("n", *out, "coordinates"), labels[1:], lengths)

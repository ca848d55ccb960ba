"""Pooling, scaling and unfolding: along places that are whole; batch and channels may be sharded."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch.nn.functional as F

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand, Shape
from meshwright.check.rule import INFER, RULES, Pure, pure
from meshwright.check.rules_dims import demand_even, relabelled
from meshwright.check.rules_window import adapted, each, laid
from meshwright.check.term import Factor, Label, Sum, Term, linear, opaque


def resized(op: str, input: Operand, lengths: Shape, value: Sum, flows: bool = True) -> Result:
    """Along the last dims, which are whole and get these lengths."""
    count = len(input.shape)
    labels = tuple(range(count))
    last = labels[count - len(lengths) :]
    along: dict[Label, str] = dict.fromkeys(last, "")
    changed: dict[Label, int] = dict(zip(last, lengths, strict=True))
    return propagate(op, (Term("input", input, labels),), value, labels, along=along, lengths=changed, flows=flows)


def _avg_pool(
    op: str,
    spatial: int,
    input: Operand,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Result:
    """Means over windows of places, which are whole; linear."""
    lengths = laid(input.whole[-spatial:], kernel_size, stride, padding, 1, ceil_mode)
    return resized(op, input, lengths, linear())


def _max_pool(
    op: str,
    spatial: int,
    input: Operand,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest of windows of places, which are whole."""
    lengths = laid(input.whole[-spatial:], kernel_size, stride, padding, dilation, ceil_mode)
    return _largest(op, input, lengths, return_indices)


def _lp_pool(
    op: str,
    spatial: int,
    input: Operand,
    norm_type: float,
    kernel_size: Any,
    stride: Any = None,
    ceil_mode: bool = False,
) -> Result:
    """Norms of windows of places, which are whole."""
    lengths = laid(input.whole[-spatial:], kernel_size, stride, ceil_mode=ceil_mode)
    return resized(op, input, lengths, opaque())


def _adaptive_avg_pool(op: str, spatial: int, input: Operand, output_size: Any) -> Result:
    """Means over as many windows of places, which are whole, as are wanted; linear."""
    return resized(op, input, adapted(input.whole[-spatial:], output_size), linear())


def _adaptive_max_pool(op: str, spatial: int, input: Operand, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of as many windows of places, which are whole, as are wanted."""
    return _largest(op, input, adapted(input.whole[-spatial:], output_size), return_indices)


def _largest(op: str, input: Operand, lengths: Shape, places: bool) -> Any:
    values, indices = (resized(op, input, lengths, opaque(), flows) for flows in (True, False))
    return (values, indices) if places else values


_POOLS: Final[dict[str, Callable[..., Any]]] = {
    "avg_pool": _avg_pool,
    "max_pool": _max_pool,
    "lp_pool": _lp_pool,
    "adaptive_avg_pool": _adaptive_avg_pool,
    "adaptive_max_pool": _adaptive_max_pool,
}

for _pool, _infer in _POOLS.items():
    for _spatial in (1, 2, 3):
        _name = f"{_pool}{_spatial}d"
        pure(_name)(partial(_infer, _name, _spatial))
        if hasattr(F, f"{_name}_with_indices"):
            _both = partial(_infer, _name, _spatial, return_indices=True)
            RULES[getattr(F, f"{_name}_with_indices")] = Pure(_name, _both)


@pure("interpolate")
def interpolate(input: Operand, size: Any = None, scale_factor: Any = None, *args: Any, **kwargs: Any) -> Result:
    """To other lengths of the places, which are whole; linear."""
    places = input.whole[2:]
    if size is not None:
        return resized("interpolate", input, adapted(places, size), linear())
    scales = scale_factor if isinstance(scale_factor, tuple) else (scale_factor,) * len(places)
    if all(isinstance(scale, int) for scale in scales):
        lengths = tuple(length * scale for length, scale in zip(places, scales, strict=True))
        return resized("interpolate", input, lengths, linear())
    if input.tag.factors is not None:
        raise TypeError("a scale that is no whole number, of a tensor that was flattened: say the size")
    return Result(resized("interpolate", input, places, linear()).tag, None)


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
    windows = math.prod(laid(input.whole[2:], kernel_size, stride, padding, dilation))
    lengths: dict[Label, int] = {1: input.whole[1] * math.prod(each(kernel_size, 2)), "windows": windows}
    terms = (Term("input", input, (0, 1, 2, 3)),)
    return propagate("unfold", terms, linear(), (0, 1, "windows"), along=along, lengths=lengths)


INFER["im2col"] = im2col
RULES[F.unfold] = Pure("unfold", im2col)


@pure("fold")
def fold(
    input: Operand, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Result:
    """[n, C * window, windows] -> [n, C, H, W]; windows are whole, channels may be sharded; linear."""
    if len(input.shape) != 3:
        raise TypeError("an input without a batch")
    window = math.prod(each(kernel_size, 2))
    rows, columns = each(output_size, 2)
    demand_even("fold", input, 1, window)
    lengths: dict[Label, int] = {1: input.whole[1] // window, "rows": rows, "columns": columns}
    return relabelled("fold", input, (0, 1, 2), (0, 1, "rows", "columns"), (2,), lengths)


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
    spatial = theta.whole[1]
    out = tuple(("out", dim) for dim in range(spatial))
    lengths: dict[Label, int] = {**dict(zip(out, size[2:], strict=True)), "coordinates": spatial}
    labels = ("n", "rows", "columns")
    return relabelled("affine_grid", theta, labels, ("n", *out, "coordinates"), labels[1:], lengths)

"""How long a dim is after windows were laid over it: torch's arithmetic of kernels, strides and paddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.check.operand import Shape


def each(value: Any, count: int) -> tuple[int, ...]:
    """A setting for each of `count` dims, given once for all or one by one.

    Errors: `TypeError` where it is neither.
    """
    listed = (value,) * count if isinstance(value, int) else tuple(value)
    if len(listed) == 1:
        listed *= count
    if len(listed) != count or not all(isinstance(one, int) for one in listed):
        raise TypeError(f"{value!r} for {count} dims")
    return listed


def laid(
    lengths: Sequence[int],
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Shape:
    """The number of windows along each dim; without a stride they stand side by side."""
    count = len(lengths)
    if padding == "same":
        return tuple(lengths)
    sizes = each(kernel, count)
    steps = sizes if stride in (None, ()) else each(stride, count)
    pads = each(0 if padding == "valid" else padding, count)
    found = []
    for length, size, step, pad, wide in zip(lengths, sizes, steps, pads, each(dilation, count), strict=True):
        room = length + 2 * pad - wide * (size - 1) - 1
        windows = (-(-room // step) if ceil_mode else room // step) + 1
        if ceil_mode and (windows - 1) * step >= length + pad:
            windows -= 1  # no window begins beyond the end
        found.append(windows)
    return tuple(found)


def unlaid(lengths: Sequence[int], kernel: Any, stride: Any, padding: Any, more: Any, dilation: Any) -> Shape:
    """The length of each dim of which so many windows were made. more: at the end, which no window says."""
    count = len(lengths)
    settings = zip(lengths, *(each(value, count) for value in (kernel, stride, padding, more, dilation)), strict=True)
    return tuple((n - 1) * step - 2 * pad + wide * (size - 1) + end + 1 for n, size, step, pad, end, wide in settings)


def adapted(lengths: Sequence[int], wanted: Any) -> Shape:
    """The lengths that are wanted; None leaves one as it is."""
    listed = (wanted,) * len(lengths) if isinstance(wanted, int) else tuple(wanted)
    return tuple(old if new is None else new for old, new in zip(lengths, listed, strict=True))

"""One product for many groups of rows, each with its own weights: what experts compute.

Three ways lead to it. In a run an `autograd.Function` calls the kernel at once. Where a tensor has no values (meta,
fakes, `torch.compile`) or somebody listens to calls, it is one opaque operator, `meshwright::grouped_linear`: torch
knows the kernel without values in bfloat16 alone. And where the kernel refuses a shape or dtype, groups are multiplied
one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import has_torch_function

_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
"""What the kernel multiplies."""
_ALIGNED: Final = 16
"""Bytes of which the kernel wants every row to be a multiple."""
_PLAIN: Final = (Tensor, nn.Parameter)


def grouped_linear(x: Tensor, weight: Tensor, offsets: Tensor, *, filled: bool = False) -> Tensor:
    """x[N, in], weight[E, out, in] -> [N, out]: rows offsets[e - 1] to offsets[e] times weight[e] transposed.

    offsets: int32 [E], where each group ends; they do not decrease, and a group may be empty. Rows past the last end
    are never read: they are zeros in the result, and so is their gradient.
    filled: the caller's word that the last group ends with row N, so that nobody looks for rows past it.
    """
    if torch.compiler.is_compiling() or x.is_meta or type(x) not in _PLAIN or has_torch_function((x, weight, offsets)):
        return _operator(x, weight, offsets, filled)
    return _GroupedLinear.apply(x, weight, offsets, filled)


def _product(x: Tensor, weight: Tensor, offsets: Tensor, filled: bool) -> Tensor:
    x, weight = _in_rows(x), _in_rows(weight)
    if not _fits(weight):
        return _one_by_one(x, weight, offsets)
    y = F.grouped_mm(x, weight.transpose(-2, -1), offs=offsets)
    return y if filled else _blank(y, offsets)


def _weights(grad: Tensor, x: Tensor, offsets: Tensor) -> Tensor:
    """grad[N, out], x[N, in] -> [E, out, in]: what each group contributes to the gradient of its weights."""
    grad, x = _in_rows(grad), _in_rows(x)
    if _fits(grad) and _fits(x):
        return F.grouped_mm(grad.t(), x, offs=offsets)
    out = x.new_zeros(offsets.shape[0], grad.shape[1], x.shape[1])
    for place, (start, end) in enumerate(_groups(offsets)):
        torch.mm(grad[start:end].t(), x[start:end], out=out[place])
    return out


def _one_by_one(x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], weight.shape[1])
    for place, (start, end) in enumerate(_groups(offsets)):
        torch.mm(x[start:end], weight[place].t(), out=out[start:end])
    return out


def _groups(offsets: Tensor) -> list[tuple[int, int]]:
    return list(pairwise([0, *offsets.tolist()]))


def _blank(y: Tensor, offsets: Tensor) -> Tensor:
    """`y`, with zeros in the rows past the last end. Only on a CPU does it cost nothing to ask where that is."""
    if y.device.type == "cpu":
        end = int(offsets[-1])
        if end < y.shape[0]:
            y[end:].zero_()
        return y
    past = torch.arange(y.shape[0], device=y.device) >= offsets[-1]
    return y.masked_fill_(past.unsqueeze(-1), 0.0)


def _in_rows(x: Tensor) -> Tensor:
    """`x` with strides that the kernel takes: no gap between rows; those of weights may lie in either order."""
    *_, rows, columns = x.shape
    strides = x.stride()
    if strides[-2:] == (columns, 1) and (x.dim() == 2 or strides[0] == rows * columns):
        return x
    if x.dim() == 3 and strides == (rows * columns, 1, rows):
        return x
    return x.clone(memory_format=torch.contiguous_format)  # `contiguous` keeps odd strides where a dim has length 1


def _fits(x: Tensor) -> bool:
    """Whether the kernel takes rows and columns of this dtype and these lengths."""
    item = x.element_size()
    lengths = x.shape[-2:] if x.dim() == 3 else x.shape[-1:]
    return x.dtype in _DTYPES and all(length * item % _ALIGNED == 0 for length in lengths)


class _GroupedLinear(torch.autograd.Function):
    """`grouped_linear` of tensors that have values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, offsets: Tensor, filled: bool) -> Tensor:
        ctx.save_for_backward(x, weight, offsets)
        ctx.filled = filled
        return _product(x, weight, offsets, filled)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> _Gradients:
        return _gradients(ctx, grads[0], _product, _weights)


_Gradients = tuple[Tensor | None, Tensor | None, None, None]


def _gradients(ctx: Any, grad: Tensor, product: Callable[..., Tensor], weights: Callable[..., Tensor]) -> _Gradients:
    x, weight, offsets = ctx.saved_tensors
    of_x, of_weight, *_ = ctx.needs_input_grad
    return (
        product(grad, weight.transpose(1, 2), offsets, ctx.filled) if of_x else None,
        weights(grad, x, offsets) if of_weight else None,
        None,
        None,
    )


_library: Final = torch.library.Library("meshwright", "FRAGMENT")
_library.define("grouped_linear(Tensor x, Tensor weight, Tensor offsets, bool filled) -> Tensor")
_library.define("grouped_linear_weights(Tensor grad, Tensor x, Tensor offsets) -> Tensor")
_library.impl("grouped_linear", _product, "CompositeExplicitAutograd")
_library.impl("grouped_linear_weights", _weights, "CompositeExplicitAutograd")
_operator: Final = torch.ops.meshwright.grouped_linear.default
_weights_operator: Final = torch.ops.meshwright.grouped_linear_weights.default


@torch.library.register_fake("meshwright::grouped_linear", lib=_library)
def _product_shape(x: Tensor, weight: Tensor, offsets: Tensor, filled: bool) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@torch.library.register_fake("meshwright::grouped_linear_weights", lib=_library)
def _weights_shape(grad: Tensor, x: Tensor, offsets: Tensor) -> Tensor:
    return x.new_empty(offsets.shape[0], grad.shape[1], x.shape[1])


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: Tensor) -> None:
    *tensors, ctx.filled = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> _Gradients:
    return _gradients(ctx, grad, _operator, _weights_operator)


torch.library.register_autograd("meshwright::grouped_linear", _backward, setup_context=_setup_context, lib=_library)

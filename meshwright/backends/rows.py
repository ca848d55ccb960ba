"""`F.linear` of DTensors whose rows are cut along more dims than the first.

A product of matrices folds [batch, sequence, features] to rows. Where data and context ranks both cut them, DTensor
takes the folded rows for a strided shard and searches among its plans for minutes. Nothing of that is needed: rows stay
where they are, and each mesh axis has one of five rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.overrides import TorchFunctionMode

from meshwright.backends.placements import demand_placed
from meshwright.errors import Problem, SpmdTypeError

_WHOLE: Final = Replicate()
_SUM: Final = Partial()


class LinearByRows(TorchFunctionMode):
    """Inside, `F.linear` of DTensors goes by rows where they are cut along more dims than the first."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is F.linear and _is_cut_inside(args[0]):
            return linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """x[..., in] weight[out, in]^T + bias[out], on every mesh axis by the rule of its placements.

    Errors: `SpmdTypeError` where an axis has none.
    """
    pairs = list(zip(x.placements, weight.placements, strict=True))
    made = tuple(_made(*pair, x.dim() - 1) for pair in pairs)
    if torch.compiler.is_compiling():
        arrives = tuple(_dual(each) for each in made)
        back = [_back(*each) for each in zip(arrives, pairs, strict=True)]
        local = F.linear(
            x.to_local(grad_placements=tuple(of_x for of_x, _ in back)),
            weight.to_local(grad_placements=tuple(of_weight for _, of_weight in back)),
        )
        y = DTensor.from_local(local, x.device_mesh, made, run_check=False, grad_placements=arrives)
    else:
        y = _Linear.apply(x, weight, made)
    return y if bias is None else y + bias


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, made: tuple[Placement, ...]) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.made = made
        return DTensor.from_local(F.linear(x.to_local(), weight.to_local()), x.device_mesh, made, run_check=False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, Any, None]:
        x, weight = ctx.saved_tensors
        demand_placed(grads[0], _arrives(ctx.made, grads[0]), "the gradient of what F.linear returns")
        pairs = zip(x.placements, weight.placements, strict=True)
        back = [_back(*each) for each in zip(grads[0].placements, pairs, strict=True)]
        grad, rows = grads[0].to_local().flatten(0, -2), x.to_local().flatten(0, -2)
        of_x = (grad @ weight.to_local()).view(x.to_local().shape)
        of_weight = grad.t() @ rows
        return (
            _placed(of_x, x, [each for each, _ in back]),
            _placed(of_weight, weight, [each for _, each in back]),
            None,
        )


def _arrives(made: Sequence[Placement], grad: Any) -> tuple[Placement, ...]:
    """The placements that the gradient of the result has to have: of a whole one whole as of I, or a sum as of R."""
    came = getattr(grad, "placements", made)
    return tuple(
        each if mine == _WHOLE and each == _WHOLE else _dual(mine) for mine, each in zip(made, came, strict=True)
    )


def _placed(local: Tensor, like: Any, placements: Sequence[Placement]) -> Any:
    return DTensor.from_local(
        local, like.device_mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _is_cut_inside(x: Any) -> bool:
    """Whether some dim between the first and the last is cut."""
    return isinstance(x, DTensor) and any(isinstance(p, Shard) and 0 < p.dim < x.dim() - 1 for p in x.placements)


def _made(x: Placement, weight: Placement, last: int) -> Placement:
    """The placement of the result."""
    if isinstance(x, Shard) and x.dim < last and weight == _WHOLE:
        return x
    if x == _WHOLE and weight == Shard(0):
        return Shard(last)
    if x == Shard(last) and weight == Shard(1):
        return _SUM
    if x in (_WHOLE, _SUM) and weight == _WHOLE:
        return x
    raise SpmdTypeError(
        Problem(
            where="F.linear",
            what=f"x is {x} and the weight is {weight} on one axis of the mesh",
            why="no rule gives a result without moving one of them",
            fix="in_dst_shardings of the module, so that x arrives as the weight wants it",
        )
    )


def _back(grad: Placement, operands: tuple[Placement, Placement]) -> tuple[Placement, Placement]:
    """The placements of the gradients of x and weight, of that of the result."""
    x, weight = operands
    if isinstance(weight, Shard):
        return (_SUM, weight) if weight.dim == 0 else (x, weight)
    if isinstance(x, Shard) or x == _SUM:
        return _dual(x), _SUM
    return grad, grad


def _dual(made: Placement) -> Placement:
    return _SUM if made == _WHOLE else _WHOLE if made == _SUM else made

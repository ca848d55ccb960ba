"""A step on the local tensors of an axis, or of several flattened into one: what each `Op` does, bound once.

The forward step fixes its backward step: `Carry` runs one as the other's gradient, to any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from meshwright.codes import Code
from meshwright.comm.exchange import demand_even, exchange
from meshwright.comm.options import PLAIN, Options, demand_writable, on_the_wire
from meshwright.comm.transport import Transport
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import Shard, SpmdType, V, split_sizes
from meshwright.types.transition import Exchange, Op, Step

Local = Callable[[Tensor], Tensor]


class BoundStep:
    """A step on the transport of its axes: `run` is its forward on plain tensors, `backward` the step of the gradient.

    options: dims of lists, lengths and dtypes, and `options.backward` those of the gradient. forward: the bound step
    whose backward this one is to be; the two know each other.
    """

    def __init__(
        self, step: Step, group: Transport, options: Options = PLAIN, forward: BoundStep | None = None
    ) -> None:
        self.step, self.group, self.options = step, group, options
        self.dims = _demanded_dims(step, group, options)
        lists = V in (step.src, step.dst)
        run = _local(step, group, options) if group.size > 1 or lists or options.rows else _same
        self.run: Local = on_the_wire(_along(run, step, options) if lists and options.dims else run, step, options)
        self.backward: BoundStep = forward or BoundStep(step.backward, group, options.backward, self)
        self.sums_back = step.backward.op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER)

    def __call__(self, x: Tensor) -> Tensor:
        if has_torch_function_unary(x):  # a checker listens, see check/rules_collective.py
            return handle_torch_function(BoundStep.__call__, (x,), self, x)
        if self.dims and x.dim() < self.dims:
            raise SpmdTypeError(_too_few_dims(self.step, self.options, x))
        if not (x.requires_grad and torch.is_grad_enabled()) and not self.options.inplace:
            return self.run(x)
        if self.options.inplace:
            demand_writable(self.step.where, x)
            return CarryInPlace.apply(x, self)  # type: ignore[no-any-return, no-untyped-call]
        return Carry.apply(x, self)  # type: ignore[no-any-return, no-untyped-call]


class Carry(torch.autograd.Function):
    """Applies a bound step; its gradient is carried by the step's backward."""

    @staticmethod
    def forward(x: Tensor, bound: BoundStep) -> Tensor:
        return bound.run(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, BoundStep], output: Tensor) -> None:
        x, ctx.bound = inputs
        ctx.dtype = x.dtype

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        back = ctx.bound.backward
        (grad,) = grads
        found = back(grad) if grad.requires_grad else back.run(grad)
        return found if found.dtype is ctx.dtype else found.to(ctx.dtype), None


class CarryInPlace(Carry):
    """`Carry` whose result takes the place of its input."""

    @staticmethod
    def forward(x: Tensor, bound: BoundStep) -> Tensor:
        return x.copy_(bound.run(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, BoundStep], output: Tensor) -> None:
        Carry.setup_context(ctx, inputs, output)
        ctx.mark_dirty(output)


def _demanded_dims(step: Step, group: Transport, options: Options) -> int:
    """How many dims a tensor has at least, to be sharded, or stacked, as the step says.

    Errors: `SpmdTypeError` where a shard states the lengths of another number of ranks.
    """
    shards = _shards(step)
    for kind in shards:
        if kind.sizes is not None and len(kind.sizes) != group.size:
            raise SpmdTypeError(
                Problem(
                    where=step.where,
                    what=f"{kind!r} states {len(kind.sizes)} lengths, and the axis has {group.size} ranks",
                    why="every rank has a length of its own",
                    fix=f"S({kind.dim}, sizes=...) with {group.size} lengths",
                    code=Code.DOES_NOT_DIVIDE,
                )
            )
    return max([*(kind.dim + 1 for kind in shards), _stacked(step, options)])


def _stacked(step: Step, options: Options) -> int:
    """How many dims a tensor has at least, for the dims along which its list is stacked to be there."""
    if not options.dims or V not in (step.src, step.dst):
        return 0
    before, after = options.dims
    if step.src is not V:
        return before + 1
    return after if step.dst is not V else max(before, after) + 1


def _shards(step: Step) -> list[Shard]:
    return [kind for layout in (step.before, step.after) for kind in layout.values() if isinstance(kind, Shard)]


def _too_few_dims(step: Step, options: Options, x: Tensor) -> Problem:
    stacked = _stacked(step, options)
    if x.dim() < stacked:
        return Problem(
            where=step.where,
            what=f"{step}: a tensor of {x.dim()} dims {tuple(x.shape)} has no place for a list along dim "
            f"{max(options.dims)}",
            why="the list of the ranks' tensors lies along a dim of the whole tensor, counted from 0",
            fix=f"a dim that there is: {x.dim()} dims are {stacked - x.dim()} too few",
            code=Code.SHAPE,
        )
    shard = max(_shards(step), key=lambda kind: kind.dim)
    return Problem(
        where=step.where,
        what=f"{step}: a tensor of {x.dim()} dims {tuple(x.shape)} has no dim for {shard!r}",
        why="S(dim) counts the dims of the tensor from 0",
        fix=f"S(dim) with dim below {x.dim()}" if x.dim() else "R, I or P: a scalar has no dim to shard",
        code=Code.SHAPE,
    )


def _same(x: Tensor) -> Tensor:
    return x


def _all_reduce(step: Step, group: Transport) -> Local:
    return group.all_reduce


def _mask(step: Step, group: Transport) -> Local:
    return _same if group.index == 0 else torch.zeros_like


def _retag(step: Step, group: Transport) -> Local:
    return _same


def _all_gather(step: Step, group: Transport) -> Local:
    if step.src is V:
        return lambda x: group.all_gather(x.unsqueeze(0))
    dim, sizes, size = *_shard(step.src), group.size
    if sizes is not None:
        return lambda x: _gather_uneven(_held(x, dim, sizes, group, step), dim, sizes, group)

    def gather(x: Tensor) -> Tensor:
        if _leads(x, dim):
            whole = group.all_gather(x.reshape(x.shape[dim:]))
            return whole.reshape(x.shape[:dim] + whole.shape)
        return torch.cat(group.all_gather(x).chunk(size), dim)

    return group.all_gather if dim == 0 else gather


def _gather_uneven(x: Tensor, dim: int, sizes: tuple[int, ...], group: Transport) -> Tensor:
    padded = group.all_gather(_pad(x, dim, 0, max(sizes) - x.shape[dim]))
    pieces = [piece.narrow(dim, 0, size) for piece, size in zip(padded.chunk(group.size), sizes, strict=True)]
    return torch.cat(pieces, dim)


def _reduce_scatter(step: Step, group: Transport) -> Local:
    if step.dst is V:
        return lambda x: group.reduce_scatter(_counted(x, group)).squeeze(0)
    dim, sizes, size = *_shard(step.dst), group.size
    if sizes is not None:
        return lambda x: _scatter_uneven(x, dim, _checked(sizes, x, dim, step), group)

    def scatter(x: Tensor) -> Tensor:
        _even(x, dim, size, step)
        if _leads(x, dim):
            piece = group.reduce_scatter(x.reshape(x.shape[dim:]))
            return piece.reshape(x.shape[:dim] + piece.shape)
        return group.reduce_scatter(torch.cat(x.chunk(size, dim)))

    return scatter


def _scatter_uneven(x: Tensor, dim: int, sizes: tuple[int, ...], group: Transport) -> Tensor:
    pieces = [_pad(piece, dim, 0, max(sizes) - piece.shape[dim]) for piece in x.split(sizes, dim)]
    return group.reduce_scatter(torch.cat(pieces)).narrow(dim, 0, sizes[group.index])


def _all_to_all(step: Step, group: Transport) -> Local:
    if step.src is V:
        return lambda x: group.all_to_all(_counted(x, group), [1] * group.size, [1] * group.size)
    (src_dim, src_sizes), (dst_dim, dst_sizes) = _shard(step.src), _shard(step.dst)

    def exchange(x: Tensor) -> Tensor:
        x = _held(x, src_dim, src_sizes, group, step)
        outgoing = x.split(_sizes(dst_sizes, x, dst_dim, group, step), dst_dim)
        lengths = src_sizes if src_sizes is not None else (x.shape[src_dim],) * group.size
        shape = list(outgoing[group.index].shape)
        incoming = [(*shape[:src_dim], length, *shape[src_dim + 1 :]) for length in lengths]
        flat = group.all_to_all(
            torch.cat([piece.reshape(-1) for piece in outgoing]),
            [_numel(piece) for piece in incoming],
            [piece.numel() for piece in outgoing],
        )
        pieces = flat.split([_numel(piece) for piece in incoming])
        return torch.cat([piece.view(size) for piece, size in zip(pieces, incoming, strict=True)], src_dim)

    return exchange


def _slice(step: Step, group: Transport) -> Local:
    if step.dst is V:
        return lambda x: _counted(x, group)[group.index]
    dim, sizes = _shard(step.dst)

    def cut(x: Tensor) -> Tensor:
        lengths = _sizes(sizes, x, dim, group, step)
        return x.narrow(dim, sum(lengths[: group.index]), lengths[group.index]).contiguous()

    return cut


def _place(step: Step, group: Transport) -> Local:
    if step.src is V:
        return lambda x: _pad(x.unsqueeze(0), 0, group.index, group.size - 1 - group.index)
    dim, sizes = _shard(step.src)

    def place(x: Tensor) -> Tensor:
        x = _held(x, dim, sizes, group, step)
        lengths = sizes if sizes is not None else (x.shape[dim],) * group.size
        return _pad(x, dim, sum(lengths[: group.index]), sum(lengths[group.index + 1 :]))

    return place


_LOCAL: Final[dict[Op, Callable[[Step, Transport], Local]]] = {
    Op.ALL_GATHER: _all_gather,
    Op.REDUCE_SCATTER: _reduce_scatter,
    Op.ALL_REDUCE: _all_reduce,
    Op.ALL_TO_ALL: _all_to_all,
    Op.SLICE: _slice,
    Op.PAD: _place,
    Op.MASK: _mask,
    Op.RETAG: _retag,
}


def _local(step: Step, group: Transport, options: Options) -> Local:
    if options.rows:
        return _rows(group, *options.rows)
    return exchange(step, group) if isinstance(step, Exchange) else _LOCAL[step.op](step, group)


def _rows(group: Transport, send: tuple[int, ...], receive: tuple[int, ...]) -> Local:
    def exchange(x: Tensor) -> Tensor:
        return group.all_to_all(x, list(receive), list(send))

    return exchange


def _along(run: Local, step: Step, options: Options) -> Local:
    """A step of lists, which are stacked along dim 0, with the list along another dim of the whole tensor."""
    before, after = options.dims or (0, 0)
    if step.src is V and step.dst is not V:
        return lambda x: run(x).movedim(0, after)
    if step.src is not V:
        return lambda x: run(x.movedim(before, 0))
    return lambda x: run(x.movedim(before, 0)).movedim(0, after)


def _shard(kind: SpmdType) -> tuple[int, tuple[int, ...] | None]:
    assert isinstance(kind, Shard)
    return kind.dim, kind.sizes


def _leads(x: Tensor, dim: int) -> bool:
    """No dim before `dim` holds more than one entry: pieces along `dim` lie end to end in memory."""
    return x.shape[0] == 1 if dim == 1 else x.shape[:dim].numel() == 1


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _pad(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    return F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (before, after)) if before or after else x


def _sizes(sizes: tuple[int, ...] | None, x: Tensor, dim: int, group: Transport, step: Step) -> tuple[int, ...]:
    if sizes is not None:
        return _checked(sizes, x, dim, step)
    _even(x, dim, group.size, step)
    return (x.shape[dim] // group.size,) * group.size


def _even(x: Tensor, dim: int, parts: int, step: Step) -> None:
    demand_even(x.shape[dim], dim, parts, tuple(x.shape), step)


def _checked(sizes: tuple[int, ...], x: Tensor, dim: int, step: Step) -> tuple[int, ...]:
    if sum(sizes) != x.shape[dim]:
        raise SpmdTypeError(
            Problem(
                where=step.where,
                what=f"{step}: sizes {sizes} add up to {sum(sizes)}, not to dim {dim} of {tuple(x.shape)}",
                fix=f"S({dim}, sizes={split_sizes(x.shape[dim], len(sizes))})",
                code=Code.DOES_NOT_DIVIDE,
            )
        )
    return sizes


def _held(x: Tensor, dim: int, sizes: tuple[int, ...] | None, group: Transport, step: Step) -> Tensor:
    if sizes is not None and x.shape[dim] != sizes[group.index]:
        raise SpmdTypeError(
            Problem(
                where=step.where,
                what=f"{step}: rank {group.index} holds {sizes[group.index]} of dim {dim}, not {x.shape[dim]}",
                why="the layout states what each rank holds of an uneven dim",
                code=Code.SHAPE,
            )
        )
    return x


def _counted(x: Tensor, group: Transport) -> Tensor:
    if x.dim() == 0 or x.shape[0] != group.size:
        raise SpmdTypeError(
            Problem(
                where=f"axis {group.name!r}",
                what=f"dim 0 of {tuple(x.shape)} is to hold one entry for each of {group.size} ranks",
                why="V is the list of the ranks' tensors, stacked along dim 0 where it is whole",
                fix=f"a dim 0 of {group.size} entries; or S(0), by which the ranks cut dim 0",
                code=Code.SHAPE,
            )
        )
    return x

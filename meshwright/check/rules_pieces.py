"""Ops that take positions out of a tensor, put tensors together, or turn positions about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.own_parts import of_rank
from meshwright.check.refusal import along_shard, placed_by
from meshwright.check.rule import pure
from meshwright.check.rules_pick import at_place, ends_at
from meshwright.check.rules_view import flat, from_front, moved
from meshwright.check.term import Factor, Label, Term, linear
from meshwright.comm.number import is_length
from meshwright.types.kinds import Shard


@pure("narrow")
def narrow(input: Operand, dim: int, start: Any, length: int) -> Result:
    """Some positions of one dim, which is whole."""
    (count,) = flat((length,))
    at = from_front(dim, len(input.shape))
    for end in (start, count):
        if is_length(end):
            if end is start or start != 0 or not ends_at(input, at, end):
                raise placed_by(end, "narrow")
            return moved("narrow", input, {n: n for n in range(len(input.shape))}, input.whole)
    if isinstance(start, Operand) and not start.shape and start.length is not None:
        return at_place("narrow", input, at, start, count)
    return _piece("narrow", input, dim, count)


def _piece(op: str, input: Operand, dim: int, length: int) -> Result:
    at = from_front(dim, len(input.shape))
    places = {each: each for each in range(len(input.shape)) if each != at}
    return moved(op, input, places, (*input.whole[:at], length, *input.whole[at + 1 :]))


@pure("split", "split_with_sizes")
def split(input: Operand, split_size: Any, dim: int = 0) -> tuple[Result, ...]:
    """Pieces of one dim, which is whole."""
    length = input.shape[from_front(dim, len(input.shape))]
    if isinstance(split_size, int):
        sizes = [min(split_size, length - start) for start in range(0, length, split_size)] or [0]
    else:
        sizes = list(split_size)
    return tuple(_piece("split", input, dim, size) for size in sizes)


@pure("chunk")
def chunk(input: Operand, chunks: int, dim: int = 0) -> tuple[Result, ...]:
    """Even pieces of one dim, which is whole."""
    length = input.shape[from_front(dim, len(input.shape))]
    if length == 0:
        raise TypeError("a dim of length 0")
    if chunks == 1:
        return (moved("chunk", input, {each: each for each in range(len(input.shape))}, input.whole),)
    return split(input, -(-length // chunks), dim)


@pure("unbind")
def unbind(input: Operand, dim: int = 0) -> tuple[Result, ...]:
    """One tensor for each position of a dim, which is whole."""
    return (select(input, dim, 0),) * input.shape[from_front(dim, len(input.shape))]


@pure("select")
def select(input: Operand, dim: int, index: Any) -> Result:
    """One position of a dim, which is whole."""
    if isinstance(index, Operand) and not index.shape:
        return at_place("select", input, dim, index, None)
    at = from_front(dim, len(input.shape))
    places = {each: each - (each > at) for each in range(len(input.shape)) if each != at}
    return moved("select", input, places, (*input.whole[:at], *input.whole[at + 1 :]))


@pure("cat", "concat", "concatenate")
def cat(tensors: tuple[Operand, ...], dim: int = 0) -> Result:
    """End to end along one dim, which is whole; all of one type. A vector of nothing is left out, as torch does.

    Of gradients that are vectors it makes one to be reduced, and V where one of them is cut.
    """
    tensors = tuple([tensor for tensor in tensors if tensor.shape != (0,)]) or tensors
    if all(len(tensor.shape) == 1 and tensor.tag.owner is not None for tensor in tensors):
        tensors = tuple(map(of_rank, tensors))
    labels = tuple(range(len(tensors[0].shape)))
    at = from_front(dim, len(labels))
    terms = [_joined(n, tensor, labels, at) for n, tensor in enumerate(tensors)]
    lengths: dict[Label, int] = {at: sum(tensor.whole[at] for tensor in tensors)}
    return propagate("cat", terms, [(Factor(n),) for n in range(len(terms))], labels, along={at: ""}, lengths=lengths)


def _joined(number: int, tensor: Operand, labels: tuple[int, ...], at: int) -> Term:
    """The joined dim may have another length in each."""
    if tensor.layout.sharding(at):
        axis = tensor.layout.sharding(at)[0]
        shard = tensor.layout[axis]
        assert isinstance(shard, Shard)
        raise along_shard(axis, f"tensors[{number}]", shard, "cat")
    return Term(f"tensors[{number}]", tensor, tuple(("joined", number) if each == at else each for each in labels))


@pure("stack")
def stack(tensors: tuple[Operand, ...], dim: int = 0) -> Result:
    """One above the other along a new dim; all of one type."""
    labels = tuple(range(len(tensors[0].shape)))
    at = dim % (len(labels) + 1)
    terms = [Term(f"tensors[{n}]", tensor, labels) for n, tensor in enumerate(tensors)]
    out = (*labels[:at], "new", *labels[at:])
    lengths: dict[Label, int] = {"new": len(tensors)}
    return propagate("stack", terms, [(Factor(n),) for n in range(len(terms))], out, lengths=lengths)


@pure("pad")
def pad(input: Operand, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Result:
    """More positions at the ends of the last dims; zeros are linear."""
    labels = tuple(range(len(input.shape)))
    whole = list(input.whole)
    along: dict[Label, str] = {}
    for n, ends in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        if any(ends):
            along[len(labels) - 1 - n] = ""
            whole[len(labels) - 1 - n] += sum(ends)
    terms = [Term("input", input, labels), Term("value", value or 0)]
    lengths: dict[Label, int] = dict(enumerate(whole))
    return propagate("pad", terms, ((Factor(0),), (Factor(1),)), labels, along=along, lengths=lengths)


@pure("roll")
def roll(input: Operand, shifts: Any, dims: Any = None) -> Result:
    """Positions change places along dims, which are whole; without dims along all as one."""
    named = range(len(input.shape)) if dims is None else (dims,) if isinstance(dims, int) else dims
    return _turned("roll", input, named)


@pure("flip")
def flip(input: Operand, *dims: Any) -> Result:
    """The last position first, along dims, which are whole."""
    return _turned("flip", input, flat(dims))


def _turned(op: str, input: Operand, dims: Sequence[int]) -> Result:
    labels = tuple(range(len(input.shape)))
    instead = f"{op} the whole before it is cut"
    along: dict[Label, str] = {from_front(dim, len(labels)): instead for dim in dims}
    return propagate(op, (Term("input", input, labels),), linear(), labels, along=along)


@pure("tril", "triu")
def tril(input: Operand, diagonal: int = 0) -> Result:
    """Zeros on one side of a diagonal of the last two dims, which are whole."""
    labels = tuple(range(len(input.shape)))
    along: dict[Label, str] = dict.fromkeys(labels[-2:], "")
    return propagate("tril", (Term("input", input, labels),), linear(), labels, along=along)

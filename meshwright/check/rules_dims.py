"""Ops that give dims other places and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.own_parts import cut_like, of_rank
from meshwright.check.refusal import Refused, along_shard
from meshwright.check.rule import Pure, getter, pure, special
from meshwright.check.rules_view import flatten, from_front, permute, transpose, unsqueeze, view
from meshwright.check.term import Label, Labels, Term, linear
from meshwright.codes import Code
from meshwright.types.kinds import Shard


def relabelled(
    op: str, input: Operand, labels: Labels, out: Labels, whole: Iterable[Label], lengths: Mapping[Label, int]
) -> Result:
    """The positions of the input under other labels; linear. whole: labels that may not be sharded."""
    along: dict[Label, str] = dict.fromkeys(whole, "")
    return propagate(op, (Term("input", input, labels),), linear(), out, along=along, lengths=lengths)


def demand_even(op: str, input: Operand, dim: int, pieces: int = 1) -> None:
    """A dim whose length changes is cut evenly, and into multiples of `pieces`.

    Errors: `Refused`.
    """
    for axis in input.layout.sharding(dim):
        shard = input.layout[axis]
        assert isinstance(shard, Shard)
        if shard.sizes is not None or input.shape[dim] % pieces:
            raise along_shard(axis, "input", shard, op, f"an even cut into multiples of {pieces}")


@pure("movedim", "moveaxis")
def movedim(input: Operand, source: Any, destination: Any) -> Result:
    """Dims change places; the others keep their order."""
    count = len(input.shape)
    pairs = ((source,), (destination,)) if isinstance(source, int) else (source, destination)
    olds, news = ([from_front(dim, count) for dim in dims] for dims in pairs)
    rest = iter(dim for dim in range(count) if dim not in olds)
    return permute(input, tuple(olds[news.index(new)] if new in news else next(rest) for new in range(count)))


@pure("view_as", "reshape_as")
def view_as(input: Operand, other: Operand) -> Result:
    """As `view` in the shape of another tensor, over all ranks too; what is a rank's own is cut as that is."""
    result = view(input, *other.shape)
    if result.whole == of_rank(other).whole:
        result = cut_like(result, other)
    if result.whole != other.whole:
        raise Refused(
            f"view_as makes a tensor of shape {result.whole} over all ranks, and other has {other.whole}",
            "tensors of one shape on a rank may be parts of tensors of different shapes",
            "an other tensor that is cut as the result is",
            code=Code.SHAPE,
        )
    return result


@pure("ravel")
def ravel(input: Operand) -> Result:
    """All dims as one."""
    return flatten(input)


@pure("atleast_1d")
def atleast_1d(input: Operand) -> Result:
    """A number becomes a vector."""
    return input_itself("atleast_1d", input) if input.shape else unsqueeze(input, 0)


@pure("atleast_2d")
def atleast_2d(input: Operand) -> Result:
    """A vector becomes a row."""
    if not input.shape:
        raise TypeError("a number")
    return input_itself("atleast_2d", input) if len(input.shape) > 1 else unsqueeze(input, 0)


@pure("atleast_3d")
def atleast_3d(input: Operand) -> Result:
    """A matrix gets a last dim of one position."""
    if len(input.shape) < 2:
        raise TypeError("a tensor of fewer than two dims")
    return input_itself("atleast_3d", input) if len(input.shape) > 2 else unsqueeze(input, -1)


def input_itself(op: str, input: Operand) -> Result:
    """The input, unchanged."""
    labels = tuple(range(len(input.shape)))
    return relabelled(op, input, labels, labels, (), {})


@pure("unfold")
def windows(input: Operand, dimension: int, size: int, step: int) -> Result:
    """Windows of one dim, which is whole, as a new last dim."""
    at = from_front(dimension, len(input.shape))
    labels = tuple(range(len(input.shape)))
    lengths: dict[Label, int] = {at: (input.whole[at] - size) // step + 1, "window": size}
    return relabelled("unfold", input, labels, (*labels, "window"), (at,), lengths)


@pure("view_as_real")
def view_as_real(input: Operand) -> Result:
    """Complex numbers as pairs in a new last dim."""
    labels = tuple(range(len(input.shape)))
    return relabelled("view_as_real", input, labels, (*labels, "pair"), (), {"pair": 2})


@pure("view_as_complex")
def view_as_complex(input: Operand) -> Result:
    """Pairs in the last dim, which is whole, as complex numbers."""
    labels = tuple(range(len(input.shape)))
    return relabelled("view_as_complex", input, labels, labels[:-1], labels[-1:], {})


@pure("adjoint")
def adjoint(input: Operand) -> Result:
    """The last two dims change places; linear."""
    return transpose(input, -2, -1)


for _name in ("H", "mH"):
    special(getter(_name))(Pure(_name, adjoint))

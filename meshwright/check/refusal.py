"""Why a rule refuses, as data; the mode adds where, and the operands."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from meshwright.codes import Code
from meshwright.comm.number import Number
from meshwright.types.kinds import I, P, R, Shard, SpmdType, V
from meshwright.types.transition import EXPERT


class Short(NamedTuple):
    """On `axis`, `name` has in its dim `dim` as many positions as a rank has of `other`, which is cut: `held`."""

    axis: str
    name: str
    other: str
    dim: int
    held: int


class Refused(Exception):
    """What is wrong, why, and what to write instead.

    code: its kind. cut: the axis whose cut of some dim is all that does not fit: where cuts are forgotten, as in a
    local region, nothing is wrong. operands: those that are to be shown, where that is not all of the call's. call: how
    the call is named, where the function's own name says nothing. short: an operand that has as many positions of a dim
    as a rank has of a cut one. owned: in a region what this rank has of its own may be meant: counts that are P on the
    axis `cut`, or places that a local length says.
    """

    def __init__(
        self, what: str, why: str = "", fix: str = "", *, code: Code | None = None, cut: str | None = None
    ) -> None:
        super().__init__(what)
        self.what, self.why, self.fix, self.code, self.cut = what, why, fix, code, cut
        self.owned = False
        self.short: Short | None = None
        self.operands: tuple[Any, ...] = ()
        self.call = ""


def change(name: str, axis: str, src: SpmdType, dst: SpmdType) -> str:
    """`I -> R: convert(weight, 'tp', src=I, dst=R)`: the call that makes `dst` of `name`."""
    call = _CALLS.get((src.letter, dst.letter), "convert")
    expert = ", expert_mode=True" if f"{src.letter} {dst.letter}" in EXPERT else ""
    return f"{src!r} -> {dst!r}: {call}({name}, {axis!r}, src={src!r}, dst={dst!r}{expert})"


_CALLS = {
    ("S", "R"): "all_gather",
    ("S", "I"): "all_gather",
    ("V", "R"): "all_gather",
    ("V", "I"): "all_gather",
    ("P", "R"): "all_reduce",
    ("P", "I"): "all_reduce",
    ("P", "S"): "reduce_scatter",
    ("P", "V"): "reduce_scatter",
    ("S", "S"): "all_to_all",
    ("V", "P"): "reinterpret",
    ("R", "V"): "reinterpret",
}


def untyped(name: str, axis: str, meets: str) -> Refused:
    """meets: what has a type on the axis, and which."""
    return Refused(
        f"{name} has no type on axis {axis!r}, where {meets}",
        "what a tensor is on an axis is stated once, where it comes into the program",
        f"assert_type({name}, {{{axis!r}: R}}), or another of R, I, V, P, S(dim)",
        code=Code.UNTYPED,
    )


def invariant_meets(axis: str, name: str, other: str, kind: SpmdType, dim: int | None) -> Refused:
    """dim: the dim of `name` that `other` shards, where `name` has it in full."""
    fix = change(name, axis, I, R) + f", whose gradient is summed over {axis}"
    if dim is not None:
        assert isinstance(kind, Shard)
        fix = change(name, axis, I, Shard(dim, kind.sizes))
    elif kind is P:
        fix = change(other, axis, P, I)
    elif kind is V:
        fix += f"; or {other} that is the same on every rank"
    return Refused(
        f"on axis {axis!r} {name} is I and {other} is {kind!r}",
        f"{other} is a part of a sum, and {name} is whole on every rank"
        if kind is P
        else f"the gradient of {name} would differ from rank to rank, and that of I is the same on every rank",
        fix,
        code=Code.INVARIANT_MEETS,
    )


def not_linear(axis: str, name: str, op: str) -> Refused:
    """`name` is P, and `op` is not linear in it."""
    return Refused(
        f"on axis {axis!r} {name} is P, and {op} is not linear in it",
        "what each rank makes of its part does not add up to the same of the sum",
        f"{change(name, axis, P, R)}; or {change(name, axis, P, I)}",
        code=Code.NOT_LINEAR,
    )


def not_counted(axis: str, name: str, op: str) -> Refused:
    """`name` says how many positions there are of something, and is a sum over ranks; in a region it is each rank's."""
    refused = not_linear(axis, name, op)
    refused.cut, refused.owned = axis, True
    return refused


def product_of_partials(axis: str, name: str, other: str) -> Refused:
    """Both are P."""
    return Refused(
        f"on axis {axis!r} {name} is P and {other} is P, and they are multiplied",
        "the sum of products is not the product of sums",
        change(name, axis, P, R),
        code=Code.PARTIAL_PRODUCT,
    )


def partial_times(axis: str, name: str, other: str, kind: SpmdType, dim: int | None) -> Refused:
    """dim: the dim of `name` along which `other` is sharded, if it has that dim."""
    whole = Shard(dim, kind.sizes) if isinstance(kind, Shard) and dim is not None else R
    return Refused(
        f"on axis {axis!r} {name} is P and {other} is {kind!r}, and they are multiplied",
        "each rank would multiply its part of the sum by another factor",
        change(name, axis, P, whole),
        code=Code.PARTIAL_PRODUCT,
    )


def partial_plus(axis: str, name: str, other: str, kind: SpmdType | None, *, has_dim: bool = True) -> Refused:
    """kind: of `other`; None where it is a number or a constant. has_dim: `name` has the dim that `other` has cut."""
    shown = "R, a constant" if kind is None else repr(kind)
    whole = kind if has_dim and kind is not None and kind is not V else R
    fixes = [change(name, axis, P, whole) + " first"]
    if " * " in name:
        fixes = [f"{change('y', axis, P, whole)}, of y that is {name} alone, before {other} is added"]
    if kind is R:
        fixes.insert(0, change(other, axis, kind, P))
    elif has_dim and (isinstance(kind, Shard) or kind is V):
        fixes.append(change(other, axis, kind, P))
    return Refused(
        f"on axis {axis!r} {name} is P and {other} is {shown}, and they are added",
        f"the sum over {axis} would count {other} once a rank",
        "; or ".join(fixes),
        code=Code.PARTIAL_PLUS,
    )


def other_shards(axis: str, name: str, kind: SpmdType, other: str, other_kind: SpmdType, wanted: int | None) -> Refused:
    """wanted: the dim of `other` that would be sharded if both were alike."""
    alike = Shard(wanted, kind.sizes) if isinstance(kind, Shard) and wanted is not None else R
    fix = change(other, axis, other_kind, alike)
    if isinstance(other_kind, Shard) and isinstance(alike, Shard) and other_kind.dim == alike.dim:
        fix = f"{change(other, axis, other_kind, R)}, then {change(other, axis, R, alike)}"
    return Refused(
        f"on axis {axis!r} {name} is {kind!r} and {other} is {other_kind!r}: not the same dim, or not cut alike",
        "the positions that meet on a rank belong to different places of the whole",
        fix,
        code=Code.OTHER_SHARDS,
        cut=axis,
    )


def whole_meets_shard(
    axis: str, name: str, kind: SpmdType, sharded: str, shard: Shard, dim: int, length: int
) -> Refused:
    """`name` has all `length` positions of its dim `dim`, of which `sharded` has this rank's."""
    return Refused(
        f"on axis {axis!r} {sharded} is {shard!r} and {name} is {kind!r} with all {length} positions of that dim",
        "a rank holds only its own positions of a sharded dim; what it meets is cut alike or does not have the dim",
        f"{change(name, axis, kind, Shard(dim, shard.sizes))}; or {change(sharded, axis, shard, R)}",
        code=Code.WHOLE_MEETS_SHARD,
        cut=axis,
    )


def other_lengths(
    axis: str,
    sharded: str,
    shard: Shard,
    length: int,
    other: str,
    other_kind: SpmdType | None,
    dim: int,
    other_length: int,
    held: int,
) -> Refused:
    """A dim has `length` positions over all ranks of `sharded`, and `other_length` of `other`, in its dim `dim`.

    other_kind: None where it has no type on the axis; held: the positions of the dim that a rank has of `sharded`.
    """
    fix = change(sharded, axis, shard, R)
    if other_length == held and other_kind in (None, R, I):  # made as long as this rank's part
        cut = change(other, axis, other_kind or R, Shard(dim, shard.sizes))
        fix = f"{other} with all {length} positions of the dim, then {cut}"
        if other_kind is None:
            fix = f"where it is made, if it is this rank's part: assert_type({other}, {{{axis!r}: S({dim})}}); or {fix}"
    elif other_kind in (None, R):
        fix = change(other, axis, R, Shard(dim, shard.sizes))
    refused = Refused(
        f"{sharded} is {shard!r} on axis {axis!r}, with {length} positions over all ranks, "
        f"and meets {other_length} of {other}",
        "shapes must fit over all ranks, not only on one",
        fix,
        code=Code.WHOLE_MEETS_SHARD,
        cut=axis,
    )
    refused.short = Short(axis, other, sharded, dim, held) if other_length == held else None
    return refused


def other_order(
    axis: str, first: str, order: tuple[str, ...], other: str, other_order: tuple[str, ...], dim: int
) -> Refused:
    """A dim is cut over the same axes, not in the same order. dim: of `other`."""
    src, dst = ("{" + ", ".join(f"{each!r}: S({dim})" for each in cut) + "}" for cut in (other_order, order))
    return Refused(
        f"{first} is cut over ({', '.join(order)}) and {other} over ({', '.join(other_order)}), outermost first",
        "ranks hold different positions of a dim that is cut in another order",
        f"cut {other} over ({', '.join(order)}): redistribute({other}, src={src}, dst={dst})",
        code=Code.OTHER_SHARDS,
        cut=axis,
    )


def along_shard(axis: str, name: str, shard: Shard, op: str, instead: str = "") -> Refused:
    """`op` works along the dim that `shard` cuts. instead: what to write where the dim stays cut."""
    fix = change(name, axis, shard, R)
    return Refused(
        f"on axis {axis!r} {name} is {shard!r}, and {op} needs all of dim {shard.dim} on one rank",
        "a rank sees only its own positions of a sharded dim",
        f"{instead}; or {fix}" if instead else fix,
        code=Code.ALONG_SHARD,
        cut=axis,
    )


def placed_by(length: Number, op: str) -> Refused:
    """A local length says which places are taken, which in a region are a rank's own."""
    refused = typed_number(length, f"the places of {op}")
    refused.owned = True
    return refused


def own_places(axis: str, name: str, other: str, kind: SpmdType) -> Refused:
    """Places as many as a rank holds of a dim meet what is one tensor over the ranks."""
    return Refused(
        f"{name} counts from 0 on each rank what this one holds of a dim that is sharded on axis {axis!r}, and meets "
        f"{other}, which is {kind!r}",
        "one device would count to the length over all ranks",
        f"of all: torch.arange(spmd.size(x, 0, {axis!r})); or of a sharded dim the places that are this rank's, "
        f"of n = x.shape[0]: assert_type(torch.arange(n) + spmd.axis_index({axis!r}) * n, {{{axis!r}: S(0)}})",
        code=Code.LENGTH,
        cut=axis,
    )


def typed_number(number: Number, name: str) -> Refused:
    """A Python number that one device would not have is used as a value beside `name`."""
    origin = number.origin
    on = f" on axis {', '.join(map(repr, sorted(origin.axes)))}" if origin.axes else ""
    if origin.source.value == "length":
        counted = f"spmd.size({_asked(origin.text)}, {', '.join(map(repr, sorted(origin.axes)))})"
        if " and " in origin.text or ".shape[" not in origin.text:
            counted = " * ".join(["n", *(f"spmd.axis_size({axis!r})" for axis in sorted(origin.axes))])
            counted += f", of n that is made of {origin.text}"
        return Refused(
            f"{origin.text} is what this rank holds of a dim that is sharded{on}, and is used as a value with {name}",
            "one device would take the length over all ranks",
            f"times the ranks: {counted}",
            code=Code.LENGTH,
            cut=min(origin.axes, default=None),
        )
    if origin.source.value == "degree":
        return Refused(
            f"{origin.text} are a value{on}, with {name}",
            "one device has no ranks: what a model computes does not depend on how many there are",
            "leave it out; a mean is a sum divided once by what it is a sum of, as the loss is by its valid tokens",
            code=Code.RANK,
        )
    return Refused(
        f"{origin.text} is another number on every rank{on}, and is used as a value with {name}",
        "the ranks would go on with different values where the types say that they are equal",
        "spmd.axis_index(axis) * x, which is V on the axis; or a number that does not depend on the rank",
        code=Code.RANK,
    )


def averaged(axis: str, name: str, kind: SpmdType, ranks: Number) -> Refused:
    """A gradient is scaled by the number of ranks of an axis over which nothing of it is summed."""
    return Refused(
        f"on axis {axis!r} {name} is a gradient that is {kind!r}, and it is scaled by {ranks.origin.text}",
        f"each rank of {axis} holds the whole gradient of its own part, however many ranks there are: a mean over them "
        "is one of the loss",
        f"leave it out; or, where the loss is to be a mean over ranks, loss / spmd.axis_size({axis!r}) before backward",
        code=Code.REDUCED,
    )


def not_constant(axis: str, kind: SpmdType, name: str) -> Refused:
    """A factory takes a value that is not the same on every rank."""
    return Refused(
        f"{name} is given a tensor that is {kind!r} on axis {axis!r}",
        "what a factory makes is the same on every rank",
        "an op on the tensor itself: torch.full_like(x, 1.0) * value; or all_gather, or all_reduce, the value first",
        code=Code.READ,
    )


def placed(axis: str, op: str, kind: SpmdType) -> Refused:
    """A rank's place is given to an op as a number that is no tensor's value, and the result would be `kind`."""
    return Refused(
        f"on axis {axis!r} {op} is given a number that is another one on each rank, and its result would be {kind!r}",
        "the ranks would compute different things where the types say that they are equal",
        f"the same number on every rank; or {change('x', axis, R, V)} first, if each rank is to have its own",
        code=Code.RANK,
    )


def rounded(axis: str, name: str, op: str, dtype: torch.dtype, into: torch.dtype) -> Refused:
    """The parts of a sum, `name`, would be rounded, or cut to whole numbers."""
    if not into.is_floating_point and not into.is_complex:
        return Refused(
            f"on axis {axis!r} {name} is P, and {op} would cut its parts to whole numbers",
            "parts that are cut do not add up to the sum that is cut",
            f"{change(name, axis, P, R)} first",
            code=Code.CAST,
        )
    return Refused(
        f"on axis {axis!r} {name} is P, and {op} would round its parts from {dtype} to {into}",
        f"the sum over {axis} would add rounded parts; a sum in lower precision is the collective's business",
        f"{change(name, axis, P, R)} first, in {dtype}, and round the sum; or state the dtype of the collective "
        f"in that call: op_dtype={into}",
        code=Code.CAST,
    )


def _asked(text: str) -> str:
    """`x, 1` of `x.shape[1]`."""
    name, _, dim = text.partition(".shape[")
    return f"{name}, {dim.removesuffix(']')}"


def mixed(axis: str) -> Refused:
    """A tensor of which parts were written as parts of a sum over ranks, and others as what is none."""
    return Refused(
        f"on axis {axis!r} a part of a tensor holds what is P, and another part what is not",
        "a tensor has one type on each axis: as P all of it would be summed over the ranks, else nothing",
        f"use its parts for themselves; or {change('part', axis, P, R)} before the part is written into it",
        code=Code.WRITE,
    )


def varying_seed(axis: str, kind: SpmdType, op: str) -> Refused:
    """Random numbers of a generator that every rank seeded with another number."""
    return Refused(
        f"on axis {axis!r} input is {kind!r}, and {op} draws other random numbers on every rank",
        "the ranks would go on with different values where the types say that they are equal",
        f"one seed for all ranks of {axis!r}, by torch.manual_seed(seed); or {change('input', axis, R, V)} first, if "
        "each rank is to have its own",
        code=Code.GENERATOR,
    )


def no_rule(what: str) -> Refused:
    """`what`: the function, or the form of it, that is unknown."""
    return Refused(
        f"{what} has no rule",
        "what it does to a tensor that is spread over ranks is not known",
        "write it with operations that have a rule; or compute it unchecked and state the type of the result: "
        'with no_typecheck("why it is right"): y = ..., then assert_type(y, {axis: type})',
        code=Code.NO_RULE,
    )


def failed(name: str, error: Exception) -> Refused:
    """The rule of `name` raised `error` on a call that torch takes: the fault is the rule's."""
    return Refused(
        f"the rule of {name} fails on this call ({type(error).__name__}: {error})",
        "torch takes the call: the fault is in the checker, and nothing is known of the program",
        "report the call to meshwright; until it is mended, compute it unchecked and state the type of the result: "
        'with no_typecheck("why it is right"): y = ..., then assert_type(y, {axis: type})',
        code=Code.NO_RULE,
    )

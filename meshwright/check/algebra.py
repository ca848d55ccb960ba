"""The type of a result on each axis, from the types of what went in.

An op is described by how its value is made of its arguments: as a sum of products. `x @ w + b` is linear in `b`, and
in each of `x` and `w` for itself; `exp(x)` is linear in nothing. With it come labels: which dims of the arguments and
of the result are the same dim. Labels that the result does not have are summed over. All propagation is in here:

    the same type everywhere            that type
    R with S(i) or V                    S(i) or V
    S(i) with S(j)                      the same label, cut alike
    S(i) over a label that is summed    P
    P                                   through what is linear in it; P + P, P * R
    I where gradients flow              with I only
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from meshwright.check import refusal
from meshwright.check.operand import Operand, Shape
from meshwright.check.refusal import Refused
from meshwright.check.tag import CONSTANT, ZERO, Fresh, Tag, typed
from meshwright.types.kinds import I, P, R, S, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout

Label = Hashable
Labels = tuple[Label, ...]


class Term(NamedTuple):
    """An argument of an op: its name, what was given, and the labels of its dims; a number has none."""

    name: str
    given: Operand | complex
    labels: Labels = ()


class Factor(NamedTuple):
    """A term in a product: its number in the list of terms, and whether the product is linear in it."""

    term: int
    linear: bool = True


Sum = Sequence[Sequence[Factor]]
"""A sum of products."""


@dataclass(frozen=True, slots=True)
class Result:
    """tag: what the result is; whole: its global shape, None where it depends on the values."""

    tag: Tag
    whole: Shape | None


def linear(term: int = 0) -> Sum:
    """The op is linear in one term."""
    return ((Factor(term),),)


def opaque(count: int = 1) -> Sum:
    """The op is linear in none of its terms."""
    return (tuple(Factor(term, linear=False) for term in range(count)),)


def propagate(
    op: str,
    terms: Sequence[Term],
    value: Sum,
    out: Labels,
    *,
    along: Mapping[Label, str] | None = None,
    flows: bool = True,
    lengths: Mapping[Label, int] | None = None,
) -> Result:
    """The result of `op`, with a dim for each label of `out`.

    along: labels that the op needs whole on one rank -> what to write where they are not; flows: False where no
    gradient passes; lengths: of labels that no term has, or that the op changes.

    Errors: `Refused` where the types do not fit.
    """
    parts = [_Part.of(term, flows) for term in terms]
    length = {**_lengths(parts), **(lengths or {})}
    whole = tuple(length[label] for label in out)
    axes = dict.fromkeys(axis for part in parts for axis in part.layout)
    if not axes:
        return Result(ZERO if all(_is_zero(product, parts) for product in value) else CONSTANT, whole)
    found = {axis: _on_axis(axis, op, parts, value, set(out), along or {}) for axis in axes}
    orders = {label: _order(label, parts) for label in length}
    counted = frozenset(axis for axis, one in found.items() if one.counted)
    return Result(typed(_layout(found, orders, out), counted), whole)


def demand_kept(op: str, target: Operand, result: Result) -> None:
    """What is written in place keeps the type of what it is written into.

    Errors: `Refused` where it does not. A tensor that a factory made empty takes any type.
    """
    if target.tag.fresh is not None:
        return
    for axis, kind in result.tag.layout.items():
        held = target.layout[axis]
        if not agree(held, kind, target.flows):
            raise Refused(
                f"on axis {axis!r} {op} would write {kind!r} into a tensor that is {held!r}",
                "a tensor keeps its type as long as it lives",
                f"a new tensor that is {kind!r} on axis {axis!r}, in place of a write",
            )


def agree(known: SpmdType, stated: SpmdType, flows: bool) -> bool:
    """One type, or R and I where no gradient tells them apart."""
    return known is stated or (not flows and known in (R, I) and stated in (R, I))


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    layout: SpmdLayout
    fresh: Fresh | None
    counted: frozenset[str]
    flows: bool
    labels: Labels
    whole: Shape

    @staticmethod
    def of(term: Term, flows: bool) -> _Part:
        given = term.given
        if isinstance(given, Operand):
            tag = given.tag
            return _Part(term.name, tag.layout, tag.fresh, tag.counted, flows and given.flows, term.labels, given.whole)
        fresh = Fresh.ZERO if given == 0 else Fresh.CONSTANT
        return _Part(term.name, _NOTHING, fresh, frozenset(), False, (), ())

    @property
    def zero(self) -> bool:
        return self.fresh is Fresh.ZERO

    def dim_of(self, label: Label) -> int | None:
        """The dim with `label`, if there is one and it is not one position that is spread over all."""
        for dim, mine in enumerate(self.labels):
            if mine == label:
                return dim
        return None


_NOTHING: Final = SpmdLayout({})


class _On(NamedTuple):
    """A part on one axis. label: of the dim that is sharded; counted: as of a tag."""

    part: _Part
    kind: SpmdType
    label: Label = None
    counted: bool = False

    @property
    def still(self) -> bool:
        """The same on every rank, and no gradient flows: it goes with anything."""
        return self.kind in (R, I) and not self.part.flows


def _lengths(parts: Iterable[_Part]) -> dict[Label, int]:
    """Label -> global length. One position is spread over the positions of others.

    Errors: `Refused` where a sharded dim meets a dim of another length.
    """
    length: dict[Label, int] = {}
    first: dict[Label, _Part] = {}
    for part in parts:
        if part.zero and part.whole:
            continue  # zeros of the local size stand for zeros of the global one
        for label, size in zip(part.labels, part.whole, strict=True):
            known = length.get(label, 1)
            if size != 1 and known not in (1, size):
                _demand_unsharded(label, first[label], part, known, size)
            if known == 1:
                length[label] = size
                first[label] = part
    for part in parts:
        if part.zero:
            for label, size in zip(part.labels, part.whole, strict=True):
                length.setdefault(label, size)
    return length


def _demand_unsharded(label: Label, a: _Part, b: _Part, a_size: int, b_size: int) -> None:
    """Where neither is sharded torch itself says that the shapes do not fit."""
    for sharded, other, size, other_size in ((a, b, a_size, b_size), (b, a, b_size, a_size)):
        dim = sharded.dim_of(label)
        axes = () if dim is None else sharded.layout.sharding(dim)
        if axes:
            other_dim = other.dim_of(label)
            assert other_dim is not None
            axis, shard = axes[0], sharded.layout[axes[0]]
            assert isinstance(shard, Shard)
            raise Refused(
                f"{sharded.name} is {shard!r} on axis {axis!r}, with {size} positions over all ranks, "
                f"and meets {other_size} of {other.name}",
                "shapes must fit over all ranks, not only on one",
                refusal.change(other.name, axis, R, Shard(other_dim, shard.sizes))
                if axis not in other.layout or other.layout[axis] is R
                else refusal.change(sharded.name, axis, shard, R),
            )


def _is_zero(product: Sequence[Factor], parts: Sequence[_Part]) -> bool:
    return any(parts[factor.term].zero and factor.linear for factor in product)


def _on_axis(
    axis: str, op: str, parts: Sequence[_Part], value: Sum, kept: set[Label], along: Mapping[Label, str]
) -> _On:
    """The type of the result, as a part that has it."""
    on = [_place(axis, part, parts) for part in parts]
    used = {factor.term for product in value for factor in product}
    mixed = [on[term] for term in sorted(used)]
    for product in value:
        for factor in product:
            if on[factor.term].kind is P and not factor.linear:
                raise refusal.not_linear(axis, on[factor.term].part.name, op)
    _demand_alike(axis, mixed)
    _demand_invariant(axis, mixed)
    for one in mixed:
        if isinstance(one.kind, Shard) and one.label in along:
            raise refusal.along_shard(axis, one.part.name, one.kind, op, along[one.label])
    products = [(product, _product(axis, product, on, kept)) for product in value]
    return _sum(axis, [(product, one) for product, one in products if not _is_zero(product, parts)], on)


def _place(axis: str, part: _Part, parts: Sequence[_Part]) -> _On:
    kind = part.layout.get(axis)
    if kind is None:
        if part.fresh is not None:
            return _On(part, R)
        other = next(other for other in parts if axis in other.layout)
        raise refusal.untyped(part.name, axis, f"{other.name} is {other.layout[axis]!r}")
    return _On(part, kind, part.labels[kind.dim] if isinstance(kind, Shard) else None, axis in part.counted)


def _demand_alike(axis: str, mixed: Sequence[_On]) -> None:
    """What is sharded on the axis is so along the same label, cut alike, and nothing has that label in full."""
    sharded = [one for one in mixed if isinstance(one.kind, Shard)]
    if not sharded:
        return
    first = sharded[0]
    assert isinstance(first.kind, Shard)
    for other in mixed:
        if other is first or other.part.zero or other.kind is P:
            continue  # a product or a sum with P has its own rule
        dim = other.part.dim_of(first.label)
        if isinstance(other.kind, Shard):
            mine, theirs = first.part.whole[first.kind.dim], other.part.whole[other.kind.dim]
            if other.label != first.label or other.kind.sizes != first.kind.sizes or mine != theirs:
                raise refusal.other_shards(axis, first.part.name, first.kind, other.part.name, other.kind, dim)
        elif other.kind is V:
            raise refusal.other_shards(axis, first.part.name, first.kind, other.part.name, other.kind, None)
        elif dim is not None and other.part.whole[dim] != 1:
            length = other.part.whole[dim]
            if other.kind is I and other.part.flows:
                raise refusal.invariant_meets(axis, other.part.name, first.part.name, first.kind, dim)
            raise refusal.whole_meets_shard(axis, other.part.name, other.kind, first.part.name, first.kind, dim, length)


def _demand_invariant(axis: str, mixed: Sequence[_On]) -> None:
    """An I operand with a gradient meets nothing that differs from rank to rank, nor a gradient that does."""
    for one in mixed:
        if one.kind is I and one.part.flows:
            for other in mixed:
                if other.kind is not I and not other.still:
                    raise refusal.invariant_meets(axis, one.part.name, other.part.name, other.kind, None)


def _product(axis: str, product: Sequence[Factor], on: Sequence[_On], kept: set[Label]) -> _On:
    """The type of a product, as the part that decides it."""
    factors = [on[factor.term] for factor in product]
    partial = [one for one in factors if one.kind is P]
    varying = [one for one in factors if isinstance(one.kind, Shard) or one.kind is V]
    if len(partial) > 1:
        raise refusal.product_of_partials(axis, partial[0].part.name, partial[1].part.name)
    if partial:
        for one in varying:
            raise refusal.partial_times(
                axis, partial[0].part.name, one.part.name, one.kind, partial[0].part.dim_of(one.label)
            )
        return partial[0]
    if varying:
        one = varying[0]
        if isinstance(one.kind, Shard):
            return one if one.label in kept else one._replace(kind=P)
        summed = any(label not in kept for other in factors for label in other.part.labels)
        linear = [on[factor.term].counted and factor.linear for factor in product]
        return one._replace(counted=any(linear) and not summed)
    return _strictest(factors)


def _strictest(parts: Sequence[_On]) -> _On:
    """Among parts that are the same on every rank: I or R as the gradient wants it, a constant only if all are."""
    return max(parts, key=lambda one: (one.part.flows, one.part.fresh is None, one.kind is R))


def _sum(axis: str, products: Sequence[tuple[Sequence[Factor], _On]], on: Sequence[_On]) -> _On:
    """The type of a sum of products, none of which is zero."""
    partial = [(product, one) for product, one in products if one.kind is P]
    if not partial:
        found = [one for _, one in products]
        varying = [one for one in found if isinstance(one.kind, Shard) or one.kind is V]
        if not varying:
            return _strictest(found or on)
        counted = varying[0].kind is V and (len(varying) < len(found) or any(one.counted for one in varying))
        return varying[0]._replace(counted=counted)
    for product, one in products:
        if one.kind is not P:
            constant = all(part.fresh is not None for part in _summed(product, on))
            shown = None if constant else one.kind
            raise refusal.partial_plus(axis, _name(partial[0][0], on), _name(product, on), shown)
    return partial[0][1]


def _summed(product: Sequence[Factor], on: Sequence[_On]) -> list[_Part]:
    """The factors in which the product is linear; all of them where there are none."""
    return [on[factor.term].part for factor in product if factor.linear] or [on[f.term].part for f in product]


def _name(product: Sequence[Factor], on: Sequence[_On]) -> str:
    """`input * weight`, without the numbers that scale it."""
    parts = _summed(product, on)
    return " * ".join(part.name for part in parts if part.labels) or parts[0].name


def _order(label: Label, parts: Sequence[_Part]) -> tuple[str, ...]:
    """The axes that shard the dims with `label`, outermost first.

    Errors: `Refused` where two operands have them in different orders.
    """
    order: tuple[str, ...] = ()
    first = ""
    for part in parts:
        dim = part.dim_of(label)
        axes = () if dim is None else part.layout.sharding(dim)
        if len(axes) > 1 and len(order) > 1 and axes != order:
            raise Refused(
                f"{first} is cut over ({', '.join(order)}) and {part.name} over ({', '.join(axes)}), outermost first",
                "ranks hold different positions of a dim that is cut in another order",
                f"cut {part.name} over ({', '.join(order)})",
            )
        if len(axes) > len(order):
            order, first = axes, part.name
    return order


def _layout(found: Mapping[str, _On], orders: Mapping[Label, tuple[str, ...]], out: Labels) -> SpmdLayout:
    """The result's layout: axes that shard one dim in the order in which the operands have them."""
    types: dict[str, SpmdType] = {}
    for dim, label in enumerate(out):
        for axis in orders.get(label, ()):
            kind = found[axis].kind
            if isinstance(kind, Shard):
                types[axis] = S(dim, kind.sizes)
    return SpmdLayout({**types, **{axis: one.kind for axis, one in found.items() if axis not in types}})

"""The type of a result on one axis, from the types of what went in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from meshwright.check import refusal
from meshwright.check.operand import Operand, Shape
from meshwright.check.tag import Factors, Fresh
from meshwright.check.term import Factor, Label, Labels, Sum, Term
from meshwright.comm.number import Number, Source
from meshwright.types.kinds import I, P, R, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout

_NOTHING: Final = SpmdLayout({})


@dataclass(frozen=True, slots=True)
class Part:
    """A term as all axes see it. fresh, counted, factors: as of a tag; whole, local: global shape, and on this rank;
    flows: it passes a gradient on; degree: ranks of each axis.
    """

    name: str
    layout: SpmdLayout
    fresh: Fresh | None
    counted: frozenset[str]
    flows: bool
    labels: Labels
    whole: Shape
    local: Shape = ()
    factors: Factors | None = None
    degree: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(term: Term, flows: bool) -> Part:
        """The term in an op that passes gradients on where `flows`; a number is a constant."""
        given = term.given
        if isinstance(given, Operand):
            tag = given.tag
            return Part(
                term.name,
                tag.layout,
                tag.fresh,
                tag.counted,
                flows and given.flows,
                term.labels,
                given.whole,
                given.shape,
                tag.factors,
                given.degree,
            )
        if isinstance(given, Number) and given.origin.source is not Source.SIZE:
            raise refusal.typed_number(given, term.name)
        fresh = Fresh.ZERO if given == 0 else Fresh.CONSTANT
        return Part(term.name, _NOTHING, fresh, frozenset(), False, (), ())

    @property
    def all_factors(self) -> Factors:
        """The global lengths of the factors of each dim; of most dims there is one."""
        return self.factors or tuple((length,) for length in self.whole)

    @property
    def zero(self) -> bool:
        """It is zero everywhere, and so of any type."""
        return self.fresh is Fresh.ZERO

    @property
    def even(self) -> bool:
        """It is one value everywhere, and so fits however others are cut."""
        return self.fresh is Fresh.ZERO or self.fresh is Fresh.UNIFORM

    def without(self, labels: set[Label]) -> Part:
        """The part without the dims of these labels."""
        kept = [dim for dim, label in enumerate(self.labels) if label not in labels]
        if len(kept) == len(self.labels):
            return self
        whole, local = (tuple(each[dim] for dim in kept) for each in (self.whole, self.local))
        uncut = SpmdLayout({axis: kind for axis, kind in self.layout.items() if not isinstance(kind, Shard)})
        return replace(
            self, labels=tuple(self.labels[dim] for dim in kept), whole=whole, local=local, layout=uncut, factors=None
        )

    def dim_of(self, label: Label) -> int | None:
        """The dim with `label`, if there is one and it is not one position that is spread over all."""
        for dim, mine in enumerate(self.labels):
            if mine == label:
                return dim
        return None


class On(NamedTuple):
    """A part on one axis. label: of the dim that is sharded; counted: as of a tag."""

    part: Part
    kind: SpmdType
    label: Label = None
    counted: bool = False

    @property
    def still(self) -> bool:
        """The same on every rank, and no gradient flows: it goes with anything."""
        return self.kind in (R, I) and not self.part.flows


def is_zero(product: Sequence[Factor], parts: Sequence[Part]) -> bool:
    """A factor is zero everywhere, and the product is linear in it."""
    return any(parts[factor.term].zero and factor.linear for factor in product)


def on_axis(axis: str, op: str, parts: Sequence[Part], value: Sum, kept: set[Label], along: Mapping[Label, str]) -> On:
    """The type of the result, as a part that has it."""
    on = [_place(axis, part, parts) for part in parts]
    used = {factor.term for product in value for factor in product}
    mixed = [on[term] for term in sorted(used)]
    for product in value:
        for factor in product:
            if on[factor.term].kind is P and not factor.linear:
                raise refusal.not_linear(axis, on[factor.term].part.name, op)
    for one in mixed:
        if isinstance(one.kind, Shard) and one.label in along:
            raise refusal.along_shard(axis, one.part.name, one.kind, op, along[one.label])
    _demand_alike(axis, mixed)
    _demand_invariant(axis, mixed)
    products, zeros = [], []
    for product in value:
        one = _product(axis, product, on, kept)
        if is_zero(product, parts):
            zeros.append(one)
        else:
            products.append((product, one))
    return _sum(axis, products, on, zeros)


def _place(axis: str, part: Part, parts: Sequence[Part]) -> On:
    kind = part.layout.get(axis)
    if kind is None:
        if part.fresh is not None:
            return On(part, R)
        if part.degree.get(axis, 2) == 1:  # of one rank nothing needs to be said
            kinds = [other.layout[axis] for other in parts if axis in other.layout]
            return On(part, next((kind for kind in kinds if kind in (R, I)), R))
        other = next(other for other in parts if axis in other.layout)
        raise refusal.untyped(part.name, axis, f"{other.name} is {other.layout[axis]!r}")
    return On(part, kind, part.labels[kind.dim] if isinstance(kind, Shard) else None, axis in part.counted)


def _demand_alike(axis: str, mixed: Sequence[On]) -> None:
    """What is sharded on the axis is so along the same label, cut alike, and nothing has that label in full."""
    sharded = [one for one in mixed if isinstance(one.kind, Shard)]
    if not sharded:
        return
    first = sharded[0]
    assert isinstance(first.kind, Shard)
    for other in mixed:
        if other is first or other.part.even or other.kind is P:
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


def _demand_invariant(axis: str, mixed: Sequence[On]) -> None:
    """An I operand with a gradient meets nothing that differs from rank to rank, nor a gradient that does."""
    for one in mixed:
        if one.kind is I and one.part.flows:
            for other in mixed:
                if other.kind is not I and not other.still:
                    raise refusal.invariant_meets(axis, one.part.name, other.part.name, other.kind, None)


def _product(axis: str, product: Sequence[Factor], on: Sequence[On], kept: set[Label]) -> On:
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


def _strictest(parts: Sequence[On]) -> On:
    """Among parts that are the same on every rank: I or R as the gradient wants it, a constant only if all are."""
    return max(parts, key=lambda one: (one.part.flows, one.part.fresh is None, one.kind is R))


def _sum(axis: str, products: Sequence[tuple[Sequence[Factor], On]], on: Sequence[On], zeros: Sequence[On]) -> On:
    """The type of a sum of products; zeros: those that are zero, of which it matters only how they are cut."""
    partial = [(product, one) for product, one in products if one.kind is P]
    if not partial:
        found = [one for _, one in products] or on
        if cut := [one for one in zeros if isinstance(one.kind, Shard)]:
            found = [*found, cut[0]]
        varying = [one for one in found if isinstance(one.kind, Shard) or one.kind is V]
        if not varying:
            return _strictest(found)
        counted = len(varying) < len(found) or any(one.counted for one in varying)
        return varying[0]._replace(counted=counted and varying[0].kind is V and found is not on)
    for product, one in products:
        if one.kind is not P:
            constant = all(part.fresh is not None for part in _summed(product, on))
            shown = None if constant else one.kind
            part = partial[0][1].part
            dim = part.dim_of(one.label) if isinstance(one.kind, Shard) else None
            spread = isinstance(one.kind, Shard) and (dim is None or part.whole[dim] == 1)
            raise refusal.partial_plus(axis, _name(partial[0][0], on), _name(product, on), shown, has_dim=not spread)
    return partial[0][1]


def _summed(product: Sequence[Factor], on: Sequence[On]) -> list[Part]:
    """The factors in which the product is linear; all of them where there are none."""
    return [on[factor.term].part for factor in product if factor.linear] or [on[f.term].part for f in product]


def _name(product: Sequence[Factor], on: Sequence[On]) -> str:
    """`input * weight`, without the numbers that scale it."""
    parts = _summed(product, on)
    return " * ".join(part.name for part in parts if part.labels) or parts[0].name

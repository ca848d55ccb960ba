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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshwright.check import refusal
from meshwright.check.align import aligned_factors, regrouped
from meshwright.check.axis import On, Part, is_zero, on_axis
from meshwright.check.operand import Operand, Shape
from meshwright.check.refusal import Refused
from meshwright.check.tag import CONSTANT, ZERO, Fresh, Tag, constant, typed
from meshwright.check.term import Label, Labels, Sum, Term
from meshwright.codes import Code
from meshwright.comm.number import Number, Source
from meshwright.types.kinds import I, R, S, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout


@dataclass(frozen=True, slots=True)
class Result:
    """tag: what the result is; whole: its global shape, None where it depends on the values. anew: a write of it leaves
    nothing of what the tensor held.
    """

    tag: Tag
    whole: Shape | None
    anew: bool = False


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
    parts = [Part.of(term, flows) for term in terms]
    for term in terms:
        if isinstance(term.given, Number) and term.given.origin.source is Source.SIZE:
            _demand_no_average(term.given, terms)
    _demand_no_own_places(terms)
    if not any(part.factors for part in parts):
        return _propagated(op, parts, value, out, along or {}, lengths or {})
    fine = aligned_factors(_bare(parts), frozenset(lengths or ()))
    needed = {each: instead for label, instead in (along or {}).items() for each in fine.of(label)}
    result = _propagated(op, fine.parts, value, fine.labels(out), needed, lengths or {})
    tag, whole = regrouped(result.tag, result.whole, [len(fine.of(label)) for label in out])
    fresh = result.tag.fresh
    return Result(tag if fresh is None else constant(tag.layout, fresh, tag.factors), whole)


def _demand_no_average(ranks: Number, terms: Sequence[Term]) -> None:
    """A gradient is not scaled by the number of ranks that hold other parts of its parameter.

    Errors: `Refused` where it is.
    """
    for term in terms:
        if isinstance(term.given, Operand) and term.given.tag.owner is not None:
            for axis, kind in term.given.layout.items():
                if axis in ranks.origin.axes and (isinstance(kind, Shard) or kind is V):
                    raise refusal.averaged(axis, term.name, kind, ranks)


def _demand_no_own_places(terms: Sequence[Term]) -> None:
    """Places counted from 0 on each rank are not those of what is one tensor over the ranks.

    Errors: `Refused` where they meet it.
    """
    given = [(term.name, term.given) for term in terms if isinstance(term.given, Operand)]
    for name, places in given:
        for axis in places.layout if places.tag.fresh is Fresh.PLACES else ():
            for other, operand in given:
                if operand.tag.fresh is None and (kind := operand.layout.get(axis, V)) is not V:
                    raise refusal.own_places(axis, name, other, kind)


def _bare(parts: Sequence[Part]) -> list[Part]:
    """The parts, of which one that is one value everywhere has only the dims that no other has."""
    cut = {label for part in parts if not part.even for label in part.labels}
    return [part.without(cut) if part.even else part for part in parts]


def _propagated(
    op: str,
    parts: Sequence[Part],
    value: Sum,
    out: Labels,
    along: Mapping[Label, str],
    lengths: Mapping[Label, int],
) -> Result:
    length = {**_lengths(parts), **lengths}
    whole = tuple(length[label] for label in out)
    axes = dict.fromkeys(axis for part in parts for axis in part.layout)
    if not axes:
        return Result(ZERO if all(is_zero(product, parts) for product in value) else CONSTANT, whole)
    found = {axis: on_axis(axis, op, parts, value, set(out), along) for axis in axes}
    orders = {label: _order(label, parts) for label in length}
    counted = frozenset(axis for axis, one in found.items() if one.counted)
    layout = _layout(found, orders, out)
    if all(part.fresh is not None for part in parts) and all(is_zero(product, parts) for product in value):
        return Result(constant(layout, Fresh.ZERO), whole)
    return Result(typed(layout, counted), whole)


def demand_kept(op: str, target: Operand, result: Result) -> None:
    """What is written in place keeps the type of what it is written into.

    Errors: `Refused` where it does not. A tensor that a factory made empty takes any type.
    """
    if target.tag.fresh is not None:
        return
    for axis, kind in result.tag.layout.items():
        held = target.tag.layout.get(axis)
        if held is None:
            raise refusal.untyped("the tensor that is written into", axis, f"what is written is {kind!r}")
        if not agree(held, kind, target.flows):
            raise Refused(
                f"on axis {axis!r} {op} would write {kind!r} into a tensor that is {held!r}",
                "a tensor keeps its type as long as it lives",
                f"a new tensor that is {kind!r} on axis {axis!r}, in place of a write",
                code=Code.WRITE,
                cut=axis if isinstance(held, Shard) and isinstance(kind, Shard) else None,
            )


def agree(known: SpmdType, stated: SpmdType, flows: bool) -> bool:
    """One type, or R and I where no gradient tells them apart."""
    return known is stated or (not flows and known in (R, I) and stated in (R, I))


def _lengths(parts: Iterable[Part]) -> dict[Label, int]:
    """Label -> global length. One position is spread over the positions of others.

    Errors: `Refused` where a sharded dim meets a dim of another length.
    """
    length: dict[Label, int] = {}
    first: dict[Label, Part] = {}
    for part in parts:
        if part.even and part.whole:
            continue  # one value in the local size stands for the same in the global one
        for label, size in zip(part.labels, part.whole, strict=True):
            known = length.get(label, 1)
            if size != 1 and known not in (1, size):
                _demand_unsharded(label, first[label], part, known, size)
            if known == 1:
                length[label] = size
                first[label] = part
    for part in parts:
        if part.even:
            for label, size in zip(part.labels, part.whole, strict=True):
                if length.get(label, 1) == 1:
                    length[label] = size
    return length


def _demand_unsharded(label: Label, a: Part, b: Part, a_size: int, b_size: int) -> None:
    """Where neither is sharded torch itself says that the shapes do not fit."""
    for sharded, other, size, other_size in ((a, b, a_size, b_size), (b, a, b_size, a_size)):
        dim = sharded.dim_of(label)
        axes = () if dim is None else sharded.layout.sharding(dim)
        if axes:
            other_dim = other.dim_of(label)
            assert other_dim is not None
            axis, shard = axes[0], sharded.layout[axes[0]]
            assert isinstance(shard, Shard)
            assert dim is not None
            held = sharded.local[dim]
            raise refusal.other_lengths(
                axis, sharded.name, shard, size, other.name, other.layout.get(axis), other_dim, other_size, held
            )


def _order(label: Label, parts: Sequence[Part]) -> tuple[str, ...]:
    """The axes that shard the dims with `label`, outermost first.

    Errors: `Refused` where two operands have them in different orders.
    """
    order: tuple[str, ...] = ()
    first = ""
    for part in parts:
        dim = part.dim_of(label)
        axes = () if dim is None else part.layout.sharding(dim)
        if len(axes) > 1 and len(order) > 1 and axes != order:
            assert dim is not None
            raise refusal.other_order(axes[0], first, order, part.name, axes, dim)
        if len(axes) > len(order):
            order, first = axes, part.name
    return order


def _layout(found: Mapping[str, On], orders: Mapping[Label, tuple[str, ...]], out: Labels) -> SpmdLayout:
    """The result's layout: axes that shard one dim in the order in which the operands have them."""
    types: dict[str, SpmdType] = {}
    for dim, label in enumerate(out):
        for axis in orders.get(label, ()):
            kind = found[axis].kind
            if isinstance(kind, Shard):
                types[axis] = S(dim, kind.sizes)
    return SpmdLayout({**types, **{axis: one.kind for axis, one in found.items() if axis not in types}})

"""Operands whose dims are products of factors, made to have the same factors; each factor then has its own label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.check.axis import Part
from meshwright.check.factors import Factor, assembled, chain, factored, refactored, unsharded
from meshwright.check.refusal import Refused
from meshwright.check.tag import Tag, typed
from meshwright.check.term import Label, Labels
from meshwright.codes import Code


@dataclass(frozen=True)
class Aligned:
    """parts: with a dim and a label for each factor; split: the factors' labels of each label that has several."""

    parts: list[Part]
    split: dict[Label, Labels]

    def of(self, label: Label) -> Labels:
        """The labels of the factors of what had `label`."""
        return self.split.get(label, (label,))

    def labels(self, labels: Labels) -> Labels:
        """All of them, in order."""
        return tuple(each for label in labels for each in self.of(label))


def aligned_factors(parts: Sequence[Part], changed: frozenset[Label]) -> Aligned:
    """The parts with their dims in factors, alike in all.

    changed: labels that get another length in the op; such dims are taken as one.

    Errors: `Refused` where the factors that are sharded do not fit together.
    """
    dims: dict[Label, list[Sequence[Factor]]] = {}
    per_part = [factored(part.all_factors, part.layout, part.degree, part.local) for part in parts]
    for part, mine in zip(parts, per_part, strict=True):
        for label, dim in zip(part.labels, mine, strict=True):
            if math.prod(factor.length for factor in dim) != 1:
                dims.setdefault(label, []).append(dim)
    lengths: dict[Label, list[int]] = {}
    for label, found in dims.items():
        totals = {math.prod(factor.length for factor in dim) for dim in found}
        fitting = chain(found) if len(totals) == 1 and label not in changed else None
        if fitting is None:
            fitting = _as_one(label, found, parts)
        lengths[label] = fitting
    split: dict[Label, Labels] = {
        label: tuple((label, n) for n in range(len(fitting))) for label, fitting in lengths.items() if len(fitting) > 1
    }
    fine = [_fine(part, mine, lengths, split) for part, mine in zip(parts, per_part, strict=True)]
    return Aligned(fine, split)


def _as_one(label: Label, dims: Sequence[Sequence[Factor]], parts: Sequence[Part]) -> list[int]:
    for dim in dims:
        for factor in dim[1:]:
            if factor.cut:
                axis, _ = factor.axes[0]
                part = next(part for part in parts if axis in part.layout)
                raise Refused(
                    f"on axis {axis!r} {part.name} shards a factor of a dim, {_shown(dim)}, and the op takes the dim "
                    "in another way",
                    "the parts of such a dim do not lie end to end",
                    f"unflatten the dim before the op; or all_gather over {axis!r} before the dims are flattened",
                    code=Code.ALONG_SHARD,
                    cut=axis,
                )
    return [math.prod(factor.length for factor in dims[0])]


def _shown(dim: Sequence[Factor]) -> str:
    return "(" + ", ".join(f"{each.length}{'@' + each.axes[0][0] if each.axes else ''}" for each in dim) + ")"


def _fine(
    part: Part, dims: Sequence[Sequence[Factor]], lengths: dict[Label, list[int]], split: dict[Label, Labels]
) -> Part:
    labels: list[Label] = []
    factors: list[list[Factor]] = []
    for label, dim in zip(part.labels, dims, strict=True):
        total = math.prod(factor.length for factor in dim)
        if total == 1:
            fine = [Factor(1, (), 1)] * len(split.get(label, (label,)))
        elif math.prod(lengths[label]) == total:
            fine = refactored(dim, lengths[label], part.degree, part.name)
        else:
            fine = refactored(dim, [total], part.degree, part.name)
        labels += split.get(label, (label,)) if len(fine) == len(split.get(label, (label,))) else (label,)
        factors += [[factor] for factor in fine]
    layout, _ = assembled(factors, unsharded(part.layout))
    whole = tuple(factor.length for (factor,) in factors)
    local = tuple(factor.local for (factor,) in factors)
    return replace(part, layout=layout, labels=tuple(labels), whole=whole, factors=None, local=local)


def regrouped(tag: Tag, whole: Sequence[int] | None, counts: Sequence[int]) -> tuple[Tag, tuple[int, ...] | None]:
    """A result with a dim for each factor, with dims of `counts` factors each."""
    if whole is None or not tag.layout:
        return tag, _products(whole, counts)
    dims: list[list[Factor]] = []
    at = 0
    for count in counts:
        mine = []
        for place in range(at, at + count):
            axes = tuple((axis, kind) for axis in tag.layout.sharding(place) if (kind := tag.layout[axis]))
            mine.append(Factor(whole[place], axes, whole[place]))  # type: ignore[arg-type]
        dims.append(mine)
        at += count
    layout, factors = assembled(dims, unsharded(tag.layout))
    return typed(layout, tag.counted, factors), _products(whole, counts)


def _products(whole: Sequence[int] | None, counts: Sequence[int]) -> tuple[int, ...] | None:
    if whole is None:
        return None
    rest = iter(whole)
    return tuple(math.prod(next(rest) for _ in range(count)) for count in counts)

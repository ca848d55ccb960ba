"""The same tensor on another naming of the same ranks: dense, sparse, storage, loss."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Protocol

from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError, nearest
from meshwright.types.kinds import Shard, SpmdType
from meshwright.types.layout import SpmdLayout


class Ranks(Protocol):
    """Which ranks an axis joins: (number of ranks, distance between them), the outermost first."""

    @property
    def atoms(self) -> tuple[tuple[int, int], ...]:
        """Runs of ranks, the outermost first."""


Pattern = Ranks | tuple[int, int]
"""An axis of a mesh, or (number of ranks, distance between them)."""
Atom = tuple[int, int]
"""The smallest parts that all axes are made of: (number of ranks, distance between them)."""


def reinterpreted(
    layout: SpmdLayout | Mapping[str, SpmdType], src_axes: Mapping[str, Pattern], dst_axes: Mapping[str, Pattern]
) -> SpmdLayout:
    """The layout on `dst_axes` of a tensor that has `layout` on `src_axes`, while every rank keeps what it holds.

    R, I, V or P on an axis holds on each of its parts, and on an axis made of parts that all have it. S(i) on an axis
    cuts dim i over its parts, the outermost first, and parts become one axis again in that order only. Axes of one
    rank hold nothing and are left out.

    Errors: `SpmdTypeError` for a name that `src_axes` does not have, and for an axis on which the tensor has no one
    type.
    """
    layout = SpmdLayout(layout)
    unknown = [axis for axis in layout if axis not in src_axes]
    if unknown:
        raise SpmdTypeError(
            Problem(
                where=f"axis {unknown[0]!r}",
                what=f"no such axis here{nearest(unknown[0], tuple(src_axes))}",
                why="a layout is on the axes of the mesh that it is reinterpreted from",
                fix=f"one of {', '.join(map(repr, src_axes))}",
                code=Code.MESH,
            )
        )
    sides = enumerate((src_axes, dst_axes))
    runs = {(side, name): _runs(pattern) for side, axes in sides for name, pattern in axes.items()}
    places = sorted({place for run in runs.values() for n, stride in run for place in (stride, n * stride)})
    split = {key: _split(key[1], run, places) for key, run in runs.items()}
    kinds: dict[Atom, tuple[str, SpmdType]] = {}
    orders: dict[int, list[Atom]] = {}
    for axis, kind in layout.items():
        atoms = split[0, axis]
        if isinstance(kind, Shard):
            orders.setdefault(kind.dim, []).extend(atoms)
        for atom in atoms:
            if atom in kinds:
                raise _refused(
                    axis, f"{kinds[atom][0]!r} joins some of the same ranks", "a layout has one type for each"
                )
            kinds[atom] = axis, kind
    named = {atom for axis in dst_axes for atom in split[1, axis]}
    for atom, (axis, kind) in kinds.items():
        if atom not in named:
            what = f"the tensor is {kind!r} over {atom[0]} of its ranks, which no axis of {', '.join(dst_axes)} joins"
            raise _refused(axis, what, "every type must be kept")
    merged = {axis: _merged(axis, split[1, axis], kinds, orders) for axis in dst_axes if split[1, axis]}
    found = {axis: kind for axis, kind in merged.items() if kind is not None}
    owner: dict[Atom, str] = {}
    for axis in found:
        for atom in split[1, axis]:
            if owner.setdefault(atom, axis) != axis:
                raise _refused(axis, f"{owner[atom]!r} joins some of the same ranks", "a layout has one type for each")
    return _ordered(found, split, orders)


def _runs(pattern: Pattern) -> tuple[Atom, ...]:
    atoms = (pattern,) if isinstance(pattern, tuple) else pattern.atoms
    return tuple((size, stride) for size, stride in atoms if size > 1)


def _split(axis: str, runs: Iterable[Atom], places: list[int]) -> tuple[Atom, ...]:
    """The parts of an axis between the places where any axis begins or ends, the outermost first."""
    atoms: list[Atom] = []
    for size, stride in runs:
        inside = [place for place in places if stride <= place <= size * stride]
        for low, high in reversed(list(itertools.pairwise(inside))):
            if high % low:
                what = (
                    f"it runs over {size} ranks at a distance of {stride}, and other axes begin or end at {low}, {high}"
                )
                raise _refused(axis, what, "the axes of both meshes are made of the same parts")
            atoms.append((high // low, low))
    return tuple(atoms)


def _merged(
    axis: str, atoms: tuple[Atom, ...], kinds: Mapping[Atom, tuple[str, SpmdType]], orders: Mapping[int, list[Atom]]
) -> SpmdType | None:
    """The type on an axis of all its parts; None where none of them has one."""
    had = [kinds.get(atom) for atom in atoms]
    if not any(had):
        return None
    told = dict.fromkeys(f"{each[1]!r} on {each[0]!r}" if each else "untyped" for each in had)
    if len({each and each[1] for each in had}) > 1:
        raise _refused(
            axis, f"it is made of ranks over which the tensor is {' and '.join(told)}", "an axis has one type"
        )
    assert had[0] is not None
    source, kind = had[0]
    if isinstance(kind, Shard):
        order = orders[kind.dim]
        start = order.index(atoms[0])
        if tuple(order[start : start + len(atoms)]) != atoms:
            raise _refused(
                axis,
                f"dim {kind.dim} is cut over its parts in another order, or over other ranks between them",
                "a flattened axis cuts a dim over its parts, the outermost first",
            )
        if kind.sizes is not None and not _whole(source, atoms, kinds):
            raise _refused(
                axis, f"{kind!r} on {source!r} states lengths", "stated lengths are of one axis and stay with it"
            )
    return kind


def _whole(source: str, atoms: tuple[Atom, ...], kinds: Mapping[Atom, tuple[str, SpmdType]]) -> bool:
    return {atom for atom, (axis, _) in kinds.items() if axis == source} == set(atoms)


def _ordered(
    found: dict[str, SpmdType],
    split: Mapping[tuple[int, str], tuple[Atom, ...]],
    orders: Mapping[int, list[Atom]],
) -> SpmdLayout:
    """The axes that cut one dim, the outermost first."""
    order = {atom: place for atoms in orders.values() for place, atom in enumerate(atoms)}
    shards = [axis for axis, kind in found.items() if isinstance(kind, Shard)]
    shards.sort(key=lambda axis: order[split[1, axis][0]])
    for axis in shards:
        found[axis] = found.pop(axis)
    return SpmdLayout(found)


def _refused(axis: str, what: str, why: str) -> SpmdTypeError:
    return SpmdTypeError(
        Problem(
            where=f"axis {axis!r}",
            what=what,
            why=why,
            fix="redistribute to a layout that both meshes have, first",
            code=Code.MESH,
        )
    )

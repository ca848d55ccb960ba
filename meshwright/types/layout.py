"""`SpmdLayout`: one type per mesh axis, with the order of the axes that shard the same dim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import shown
from meshwright.types.axes import usual_order
from meshwright.types.kinds import P, Shard, SpmdType, V, instead_of, shown_type, split_sizes


class SpmdLayout(Mapping[str, SpmdType]):
    """An interned mapping from axis name to type; equal layouts are the same object.

    `SpmdLayout({"dp": S(0), "cp": S(1), "tp": S(1)})`. Where several axes shard one dim, the first named is the
    outermost: here dim 1 is cut over cp, and each piece over tp. Written `[·@dp, ·@(cp,tp)]` in the notation.
    """

    __slots__ = ("_hash", "_types", "cut")
    _types: dict[str, SpmdType]
    _hash: int
    cut: bool
    """Whether any axis shards a dim."""
    _interned: ClassVar[dict[Any, SpmdLayout]] = {}

    def __new__(cls, types: Mapping[str, SpmdType]) -> SpmdLayout:
        if isinstance(types, SpmdLayout):
            return types
        if not isinstance(types, Mapping):
            raise SpmdTypeError(
                Problem(
                    where="layout",
                    what=f"{shown(types)} is no layout",
                    fix='{"dp": S(0), "tp": R}: a type for each axis',
                    code=Code.LAYOUT,
                )
            )
        orders: dict[int, list[str]] = {}
        for axis, kind in types.items():
            if not isinstance(axis, str):
                raise SpmdTypeError(
                    Problem(
                        where="layout",
                        what=f"a layout maps axis names to types; got the axis {shown(axis)}",
                        why="axes are looked up by name",
                        fix='{"tp": R}',
                        code=Code.LAYOUT,
                    )
                )
            if not isinstance(kind, SpmdType):
                raise SpmdTypeError(
                    Problem(
                        where="layout",
                        what=f"the type on axis {axis!r} is one of R, I, V, P, S(dim); got {shown_type(kind)}",
                        why="a type is a value, not its name",
                        fix=instead_of(kind),
                        code=Code.LAYOUT,
                    )
                )
            if isinstance(kind, Shard):
                if kind.dim < 0:
                    raise SpmdTypeError(
                        Problem(
                            where="layout",
                            what=f"{kind!r} on axis {axis!r} counts from the end",
                            why="a layout is of no tensor yet, and so has no last dim",
                            fix="the dim counted from the front: S(0), S(1), ...",
                            code=Code.LAYOUT,
                        )
                    )
                orders.setdefault(kind.dim, []).append(axis)
        key = frozenset(types.items()), frozenset((dim, *axes) for dim, axes in orders.items())
        found = cls._interned.get(key)
        if found is None:
            found = super().__new__(cls)
            found._types = _in_order(types, orders)
            found._hash = hash(key)
            found.cut = bool(orders)
            found = cls._interned.setdefault(key, found)
        return found

    def __getitem__(self, axis: str) -> SpmdType:
        return self._types[axis]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SpmdLayout):
            return self is other
        return self is SpmdLayout(other) if isinstance(other, Mapping) else NotImplemented

    def __reduce__(self) -> Any:
        return SpmdLayout, (self._types,)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{axis}:{kind!r}" for axis, kind in self.items()) + "}"

    @property
    def dual(self) -> SpmdLayout:
        """The layout of the gradient."""
        return SpmdLayout({axis: kind.dual for axis, kind in self.items()})

    def replace(self, **types: SpmdType) -> SpmdLayout:
        """This layout with other types on the named axes, which become the innermost of their dim."""
        return SpmdLayout({**self.only(lambda axis: axis not in types), **types})

    def only(self, axes: Callable[[str], bool]) -> SpmdLayout:
        """This layout on the axes for which `axes(name)` holds."""
        return SpmdLayout({axis: kind for axis, kind in self.items() if axes(axis)})

    def sharding(self, dim: int) -> tuple[str, ...]:
        """The axes that shard `dim`, outermost first."""
        return tuple(axis for axis, kind in self.items() if isinstance(kind, Shard) and kind.dim == dim)

    @property
    def sharded(self) -> tuple[str, ...]:
        """The axes over which some dim is sharded."""
        return tuple(axis for axis, kind in self.items() if isinstance(kind, Shard))

    @property
    def partial(self) -> tuple[str, ...]:
        """The axes on which a sum is pending."""
        return tuple(axis for axis, kind in self.items() if kind is P)

    @property
    def varying(self) -> tuple[str, ...]:
        """The axes on which each rank has its own."""
        return tuple(axis for axis, kind in self.items() if kind is V)

    def span(self, dim: int, length: int, degree: Mapping[str, int], index: Mapping[str, int]) -> range:
        """The positions of dim `dim` (global length `length`) that the rank at `index` holds.

        degree, index: size of each axis and this rank's place on it. Axes absent from `degree` are off.
        """
        held = range(length)
        for axis in self.sharding(dim):
            if axis in degree:
                held = _piece(held, self._types[axis], degree[axis], index[axis])
        return held

    def local_shape(
        self, shape: tuple[int, ...], degree: Mapping[str, int], index: Mapping[str, int]
    ) -> tuple[int, ...]:
        """The shape on the rank at `index` of a tensor of global `shape`."""
        return tuple(len(self.span(dim, length, degree, index)) for dim, length in enumerate(shape))


def _in_order(types: Mapping[str, SpmdType], orders: Mapping[int, list[str]]) -> dict[str, SpmdType]:
    """The types with axes in the usual order, except that of those that shard one dim the outermost stands first.

    So equal layouts are printed alike, whichever of them was made first.
    """
    left = {dim: iter(axes) for dim, axes in orders.items()}
    ordered: dict[str, SpmdType] = {}
    for axis in sorted(types, key=usual_order):
        kind = types[axis]
        named = next(left[kind.dim]) if isinstance(kind, Shard) else axis
        ordered[named] = types[named]
    return ordered


def _piece(held: range, kind: SpmdType, parts: int, index: int) -> range:
    assert isinstance(kind, Shard)
    sizes = kind.sizes if kind.sizes is not None else split_sizes(len(held), parts)
    if len(sizes) != parts or sum(sizes) != len(held):
        raise ValueError(f"{kind} cannot cut {len(held)} positions over {parts} ranks")
    start = sum(sizes[:index])
    return held[start : start + sizes[index]]

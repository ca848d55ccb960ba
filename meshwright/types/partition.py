"""`PartitionSpec`: which axes cut each dim, dim by dim. A layout says the same axis by axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import S, Shard, SpmdType
from meshwright.types.layout import SpmdLayout

Entry = str | tuple[str, ...] | None


class PartitionSpec(tuple[Entry, ...]):
    """One entry for each dim: None, the axis that cuts it, or several, the outermost first.

    `PartitionSpec("dp", None, ("cp", "tp"))`; dims behind the last entry are whole. An axis cuts one dim at most.

    Errors: `SpmdTypeError` for another entry, and for an axis that is named twice.
    """

    def __new__(cls, *entries: Entry) -> PartitionSpec:
        named: list[str] = []
        for dim, entry in enumerate(entries):
            axes = (entry,) if isinstance(entry, str) else entry
            if axes is None:
                continue
            if not isinstance(axes, tuple) or not axes or not all(isinstance(axis, str) for axis in axes):
                raise SpmdTypeError(
                    Problem(
                        where=f"dim {dim}",
                        what=f"{entry!r} names no axes",
                        why="a dim is whole, or cut over one axis or several",
                        fix='None, "tp" or ("cp", "tp")',
                        code=Code.LAYOUT,
                    )
                )
            named += axes
        twice = [axis for place, axis in enumerate(named) if axis in named[:place]]
        if twice:
            raise SpmdTypeError(
                Problem(
                    where=f"axis {twice[0]!r}",
                    what="it is named twice",
                    why="over an axis at most one dim is cut",
                    fix="name it for one dim",
                    code=Code.LAYOUT,
                )
            )
        return super().__new__(cls, entries)

    def __getnewargs__(self) -> Any:
        return tuple(self)

    def __repr__(self) -> str:
        entries = (
            entry if not isinstance(entry, tuple) else f"({', '.join(map(repr, entry))})" for entry in map(_shown, self)
        )
        return f"PartitionSpec({', '.join(map(str, entries))})"

    def layout(self, others: Mapping[str, SpmdType] | None = None) -> SpmdLayout:
        """The layout that cuts dims so. others: the types on the axes that cut nothing.

        Errors: `SpmdTypeError` for an axis that is in both, and for a shard in `others`.
        """
        cut: dict[str, SpmdType] = {}
        for dim, entry in enumerate(self):
            for axis in (entry,) if isinstance(entry, str) else entry or ():
                cut[axis] = S(dim)
        for axis, kind in (others or {}).items():
            if axis in cut or isinstance(kind, Shard):
                raise SpmdTypeError(
                    Problem(
                        where=f"axis {axis!r}",
                        what=f"{kind!r} beside {self}",
                        why="the spec says which axes cut a dim, and the others are R, I, V or P",
                        fix=f"leave {axis!r} out, or name it in the spec",
                        code=Code.LAYOUT,
                    )
                )
        return SpmdLayout({**cut, **(others or {})})

    @staticmethod
    def of(layout: SpmdLayout | Mapping[str, SpmdType], dims: int | None = None) -> PartitionSpec:
        """The spec of a layout; what it is on axes that cut nothing is not said. dims: entries, at least those needed.

        Errors: `SpmdTypeError` for a shard that states lengths, and for one of a dim that there is not.
        """
        layout = SpmdLayout(layout)
        count = 0
        for axis, kind in layout.items():
            if not isinstance(kind, Shard):
                continue
            count = max(count, kind.dim + 1)
            if kind.sizes is not None or (dims is not None and kind.dim >= dims):
                raise SpmdTypeError(
                    Problem(
                        where=f"axis {axis!r}",
                        what=f"{kind!r} in a spec" + ("" if kind.sizes is not None else f" of {dims} dims"),
                        why="a spec says which axes cut each dim, and that they cut evenly",
                        fix=f"S({kind.dim})" if kind.sizes is not None else f"dims = {kind.dim + 1}",
                        code=Code.LAYOUT,
                    )
                )
        cuts = (layout.sharding(dim) for dim in range(count if dims is None else dims))
        return PartitionSpec(*(None if not axes else axes[0] if len(axes) == 1 else axes for axes in cuts))


def _shown(entry: Entry) -> Any:
    return entry if isinstance(entry, tuple) else repr(entry)

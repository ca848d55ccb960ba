"""`PartitionSpec`: a layout written dim by dim, as users of other libraries know it."""

from __future__ import annotations

from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import S
from meshwright.types.layout import SpmdLayout

Entry = str | tuple[str, ...] | None


class PartitionSpec(tuple[Entry, ...]):
    """For each dim the axis that shards it, a tuple of axes (outermost first), or None: `PartitionSpec("dp", None)`.

    Errors: `SpmdTypeError` where an axis shards two dims.
    """

    def __new__(cls, *entries: Entry) -> PartitionSpec:
        axes = [axis for entry in entries for axis in _axes(entry)]
        for axis in axes:
            if axes.count(axis) > 1:
                raise SpmdTypeError(
                    Problem(
                        where=f"PartitionSpec{entries!r}",
                        what=f"axis {axis!r} shards more than one dim",
                        why="the ranks of an axis differ in one way",
                        fix=f"{axis!r} for one dim",
                    )
                )
        return super().__new__(cls, entries)

    @staticmethod
    def of(layout: SpmdLayout, dims: int) -> PartitionSpec:
        """What shards each of the `dims` dims of a tensor of this layout."""
        found: list[Entry] = []
        for dim in range(dims):
            axes = layout.sharding(dim)
            found.append(None if not axes else axes[0] if len(axes) == 1 else axes)
        return PartitionSpec(*found)

    def layout(self) -> SpmdLayout:
        """The layout, on the axes that shard something."""
        return SpmdLayout({axis: S(dim) for dim, entry in enumerate(self) for axis in _axes(entry)})

    def __repr__(self) -> str:
        return f"PartitionSpec({', '.join(map(repr, self))})"


def _axes(entry: Entry) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)

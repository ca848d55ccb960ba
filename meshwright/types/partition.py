"""`PartitionSpec`: which axes cut each dim, dim by dim. A layout says the same axis by axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import shown
from meshwright.types.kinds import S, Shard, SpmdType
from meshwright.types.layout import SpmdLayout

Entry = Any
"""None, an axis, or a tuple of axes."""


class PartitionSpec(tuple[Entry, ...]):
    """One entry for each dim: None, the axis that cuts it, or several, the outermost first.

    `PartitionSpec("dp", None, ("cp", "tp"))`; dims behind the last entry are whole. An axis cuts one dim at most. It is
    a name; or a process group or a mesh axis, whose name is looked up in the current mesh when the layout is asked for.

    Errors: `SpmdTypeError` for another entry, and for an axis that is named twice.
    """

    _axis_kinds: ClassVar[tuple[type, ...]] = (str,)
    _axis_name: ClassVar[Callable[[Any], str]] = str

    def __new__(cls, *entries: Entry) -> PartitionSpec:
        named: list[Any] = []
        for dim, entry in enumerate(entries):
            axes = _axes(entry)
            if (isinstance(entry, tuple) and not axes) or not all(isinstance(axis, cls._axis_kinds) for axis in axes):
                raise SpmdTypeError(
                    Problem(
                        where=f"dim {dim}",
                        what=f"{shown(entry)} names no axes",
                        why="a dim is whole, or cut over one axis or several",
                        fix='None, "tp" or ("cp", "tp")',
                        code=Code.LAYOUT,
                    )
                )
            named += axes
        _demand_once(named)
        return super().__new__(cls, entries)

    def __getnewargs__(self) -> Any:
        return tuple(self)

    def __repr__(self) -> str:
        entries = (f"({', '.join(map(shown, entry))})" if isinstance(entry, tuple) else shown(entry) for entry in self)
        return f"PartitionSpec({', '.join(map(str, entries))})"

    def layout(self, others: Mapping[str, SpmdType] | None = None) -> SpmdLayout:
        """The layout that cuts dims so. others: the types on the axes that cut nothing.

        Errors: `SpmdTypeError` for an axis that is in both, for a shard in `others`, and for ranks that no axis of the
        current mesh joins.
        """
        places = [(self._name(axis), dim) for dim, entry in enumerate(self) for axis in _axes(entry)]
        _demand_once([axis for axis, _ in places])
        cut: dict[str, SpmdType] = {axis: S(dim) for axis, dim in places}
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

    def _name(self, axis: Any) -> str:
        return axis if isinstance(axis, str) else type(self)._axis_name(axis)

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


def know_axes(kinds: tuple[type, ...], name: Callable[[Any], str]) -> None:
    """Say what an axis may be besides a name, and how its name is found: types know no mesh."""
    PartitionSpec._axis_kinds = (str, *kinds)
    PartitionSpec._axis_name = staticmethod(name)


def _axes(entry: Entry) -> tuple[Any, ...]:
    return entry if isinstance(entry, tuple) else () if entry is None else (entry,)


def _demand_once(axes: Sequence[Any]) -> None:
    twice = [axis for place, axis in enumerate(axes) if axis in axes[:place]]
    if twice:
        raise SpmdTypeError(
            Problem(
                where=f"axis {shown(twice[0])}",
                what="it is named twice",
                why="over an axis at most one dim is cut",
                fix="name it for one dim",
                code=Code.LAYOUT,
            )
        )

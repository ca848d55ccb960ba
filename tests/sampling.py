"""What property-based tests draw from: types, layouts, shapes."""

from __future__ import annotations

from hypothesis import strategies as st

from meshwright.types.kinds import I, P, R, S, SpmdType, V
from meshwright.types.layout import SpmdLayout

AXES = ("dp", "cp", "tp")
UNSHARDED = (R, I, V, P)


def kinds(dims: int = 3, *, unsharded: tuple[SpmdType, ...] = UNSHARDED) -> st.SearchStrategy[SpmdType]:
    """One of the unsharded types, or an even shard of one of `dims` dims."""
    return st.sampled_from((*unsharded, *(S(dim) for dim in range(dims))))


@st.composite
def layouts(
    draw: st.DrawFn,
    axes: tuple[str, ...] = AXES,
    dims: int = 3,
    unsharded: tuple[SpmdType, ...] = UNSHARDED,
    sizes: bool = False,
) -> SpmdLayout:
    """A layout on exactly `axes`, in any order of those that shard the same dim; with stated sizes if `sizes`."""
    types = {}
    for axis in draw(st.permutations(axes)):
        kind = draw(kinds(dims, unsharded=unsharded))
        if isinstance(kind, S) and sizes and draw(st.booleans()):
            kind = S(kind.dim, tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))))
        types[axis] = kind
    return SpmdLayout(types)

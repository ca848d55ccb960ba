"""Types on the axes of one mesh, read on those of another over the same ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.check import source
from meshwright.check.refusal import Refused
from meshwright.check.tag import Tag
from meshwright.codes import Code
from meshwright.comm.mesh_axis import MeshAxis
from meshwright.comm.scope import View
from meshwright.errors import Problem
from meshwright.types.kinds import Shard, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.mesh_axis import reinterpreted


def patterns(mesh: View) -> dict[str, MeshAxis]:
    """Axis -> its ranks, of axes of which they are known."""
    return {axis: each.mesh_axis for axis, each in mesh.items() if each.mesh_axis is not None}


def on_mesh(tag: Tag, mesh: View, known: Mapping[str, MeshAxis], local: bool) -> Tag:
    """The tag, on the axes of `mesh` where it is on those of another one; known: the ranks of all axes so far.

    Errors: `SpmdTypeError` where the tensor has no one type on some axis there.
    """
    if all(axis in mesh for axis in tag.layout):
        return tag
    layout = tag.layout
    if local:
        layout = SpmdLayout({axis: V if isinstance(kind, Shard) else kind for axis, kind in layout.items()})
    elif tag.factors is not None:
        raise _product(tag)
    return replace(tag, layout=reinterpreted(layout, known, patterns(mesh)), factors=None)


def _product(tag: Tag) -> Refused:
    return Refused(
        f"a tensor of {tag.layout} with a dim that is a product of factors is used under another mesh",
        "which ranks hold which part of such a dim is only known on the axes that cut it",
        "unflatten the dim before the mesh is switched",
        code=Code.MESH,
    )


def other_ranks(axis: str) -> Problem:
    """What is said where a name stands for other ranks than before."""
    return Problem(
        where=source.line(),
        what=f"axis {axis!r} names other ranks in this mesh than in one that was current before",
        why="the type of a tensor is on axes by name, and would be read as that of other ranks",
        fix=f"another name for the axis in one of the meshes, {axis}_2 say",
        code=Code.MESH,
    )

"""Print and parse layouts in the one notation that errors, tables, docs and tests share.

    f32[4@dp, 512@(cp,tp), 16]{ep:P}      dtype, global shape and layout
    [·@dp, ·@(cp,tp)]{ep:P}               a layout alone; dims behind the last sharded one are left out

Behind a dim's length stand the axes that shard it, the outermost first, with the ranks' lengths where a shard states
them: `5@tp(3,2)`. A dim that is a product of factors is written `(4@dp, 8@cp)`. The braces name every axis that shards
nothing, with its type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn, TypeVar

from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import I, P, R, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout

DTYPES: Final = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "complex64": "c64",
    "complex128": "c128",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "bool",
}
"""Long name of a dtype -> its name in the notation. A name that is not here is printed as it is."""

T = TypeVar("T")

_LENGTH_UNKNOWN: Final = "·"
_UNSHARDED: Final = {kind.letter: kind for kind in (R, I, V, P)}


def short_dtype(name: str) -> str:
    """`"torch.float32"`, `"float32"` or `"f32"` as `"f32"`."""
    name = name.removeprefix("torch.")
    return DTYPES.get(name, name)


def render(dtype: str, shape: Sequence[int], layout: SpmdLayout, factors: Sequence[Sequence[int]] | None = None) -> str:
    """`f32[4@dp, 16]{tp:R}`. `dtype` is a short or a long name, `shape` the global one.

    factors: the lengths of the factors of each dim, where some dim is a product; the layout then counts factors.

    Errors: `SpmdTypeError` where the layout shards a dim that `shape` does not have.
    """
    if factors is not None:
        return f"{short_dtype(dtype)}[{', '.join(_products(factors, layout))}]" + _braces(layout)
    for axis, kind in layout.items():
        if isinstance(kind, Shard) and kind.dim >= len(shape):
            raise SpmdTypeError(
                Problem(
                    where=f"axis {axis!r}",
                    what=f"{kind!r} shards dim {kind.dim} of a tensor of shape {tuple(shape)}",
                    why="dims are counted from 0",
                    fix=f"S(dim) with dim below {len(shape)}"
                    if shape
                    else "R, I, V or P: a scalar has no dim to shard",
                    code=Code.SHAPE,
                )
            )
    dims = (str(length) + _axes(layout, dim) for dim, length in enumerate(shape))
    return f"{short_dtype(dtype)}[{', '.join(dims)}]" + _braces(layout)


def render_layout(layout: SpmdLayout) -> str:
    """`[·@dp, ·@(cp,tp)]{ep:P}`; `{ep:P}` where nothing is sharded, `[]` where no axis is named."""
    sharded = [kind.dim for kind in layout.values() if isinstance(kind, Shard)]
    dims = (_LENGTH_UNKNOWN + _axes(layout, dim) for dim in range(1 + max(sharded, default=-1)))
    brackets = f"[{', '.join(dims)}]" if sharded or not layout else ""
    return brackets + _braces(layout)


def parse(text: str) -> tuple[str, tuple[int, ...], SpmdLayout]:
    """The short dtype name, global shape and layout of what `render` prints.

    Errors: `SpmdTypeError` that points at the first character which does not belong.
    """
    reader = _Reader(text)
    dtype = short_dtype(reader.take(_NAME, "a dtype"))
    lengths, shards = reader.dims(lambda: int(reader.take(_NUMBER, "the length of a dim")))
    return dtype, tuple(lengths), reader.rest(shards)


def parse_layout(text: str) -> SpmdLayout:
    """The layout that `render_layout` printed.

    Errors: `SpmdTypeError` that points at the first character which does not belong.
    """
    reader = _Reader(text)
    shards: dict[str, SpmdType] = {}
    if not reader.at("{"):
        _, shards = reader.dims(lambda: reader.expect(_LENGTH_UNKNOWN))
    return reader.rest(shards)


def _products(factors: Sequence[Sequence[int]], layout: SpmdLayout) -> Iterator[str]:
    place = 0
    for lengths in factors:
        shown = [f"{length}{_axes(layout, place + n)}" for n, length in enumerate(lengths)]
        place += len(lengths)
        yield shown[0] if len(shown) == 1 else f"({', '.join(shown)})"


def _axes(layout: SpmdLayout, dim: int) -> str:
    axes = [axis + _sizes(layout[axis]) for axis in layout.sharding(dim)]
    if not axes:
        return ""
    return f"@{axes[0]}" if len(axes) == 1 else f"@({','.join(axes)})"


def _sizes(kind: SpmdType) -> str:
    assert isinstance(kind, Shard)
    return "" if kind.sizes is None else f"({','.join(map(str, kind.sizes))})"


def _braces(layout: SpmdLayout) -> str:
    others = [f"{axis}:{kind!r}" for axis, kind in layout.items() if not isinstance(kind, Shard)]
    return f"{{{', '.join(others)}}}" if others else ""


_NAME: Final = re.compile(r"\w+")
_NUMBER: Final = re.compile(r"\d+")
_LETTER: Final = re.compile("[" + "".join(_UNSHARDED) + "]")
_SPACE: Final = re.compile(r"\s*")


class _Reader:
    """Reads the notation from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0

    def dims(self, length: Callable[[], T]) -> tuple[list[T], dict[str, SpmdType]]:
        """`[4@dp, 16]`: what `length` reads of each dim, and the axes that shard one."""
        lengths: list[T] = []
        shards: dict[str, SpmdType] = {}

        def dim() -> None:
            lengths.append(length())
            if self.skip("@"):
                self.axes(len(lengths) - 1, shards)

        self.between("[", dim, "]")
        return lengths, shards

    def axes(self, dim: int, shards: dict[str, SpmdType]) -> None:
        """`dp`, `tp(3,2)` or `(cp,tp)`."""

        def axis() -> None:
            name = self.axis(shards)
            sizes: list[int] | None = None
            if self.at("("):
                sizes = []
                self.between("(", lambda: sizes.append(int(self.take(_NUMBER, "a shard's length"))), ")")
            shards[name] = Shard(dim, None if sizes is None else tuple(sizes))

        if self.at("("):
            self.between("(", axis, ")")
        else:
            axis()

    def rest(self, types: dict[str, SpmdType]) -> SpmdLayout:
        """`{ep:P}`, or nothing, and then the end."""

        def unsharded() -> None:
            name = self.axis(types)
            self.expect(":")
            types[name] = _UNSHARDED[self.take(_LETTER, "R, I, V or P")]

        if self.at("{"):
            self.between("{", unsharded, "}")
        if self.place != len(self.text.rstrip()):
            self.fail("the end")
        return SpmdLayout(types)

    def axis(self, named: dict[str, SpmdType]) -> str:
        start = self.place
        name = self.take(_NAME, "an axis")
        if name in named:
            self.place = start
            self.fail(f"an axis other than {name!r}, which is named already")
        return name

    def between(self, opening: str, element: Callable[[], None], closing: str) -> None:
        """Elements parted by commas between two marks; there may be none."""
        self.expect(opening)
        while not self.skip(closing):
            element()
            if not self.at(closing):
                self.expect(",")

    def at(self, mark: str) -> bool:
        self.take(_SPACE, "")
        return self.text.startswith(mark, self.place)

    def skip(self, mark: str) -> bool:
        found = self.at(mark)
        if found:
            self.place += len(mark)
        return found

    def expect(self, mark: str) -> None:
        if not self.skip(mark):
            self.fail(f"{mark!r}")

    def take(self, pattern: re.Pattern[str], what: str) -> str:
        if pattern is not _SPACE:
            self.take(_SPACE, "")
        match = pattern.match(self.text, self.place)
        if match is None:
            self.fail(what)
        self.place = match.end()
        return match.group()

    def fail(self, wanted: str) -> NoReturn:
        raise SpmdTypeError(
            Problem(
                where=f"column {self.place + 1}",
                what=f"{self.text!r} is no layout: {wanted} is expected at {self.text[self.place :]!r}",
                why="a tensor is written dtype[length@axes, ...]{axis:type}, a layout alone [·@axes, ...]{axis:type}",
                fix="f32[4@dp, 512@(cp,tp), 16]{ep:P}",
                code=Code.LAYOUT,
            )
        )

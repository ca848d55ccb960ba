"""The type of a tensor on one mesh axis: R, I, V, P or S(i).

What each denotes, for the local values x_0 ... x_{n-1} of the n ranks of the axis:

    R   replicate    x_0, equal on all ranks; each rank's gradient is its own contribution (P)
    I   invariant    x_0, equal on all ranks; so is the gradient (I)
    V   varying      the list x_0 ... x_{n-1}
    P   partial      the sum x_0 + ... + x_{n-1}
    S(i) shard       the concatenation of x_0 ... x_{n-1} along dim i

Types are interned: equal types are the same object, in every process that unpickles them too.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import WHOLES, demand, shown


class SpmdType:
    """The type of a tensor on one axis. Use `R`, `I`, `V`, `P` and `S(i)`; there are no others."""

    __slots__ = ("letter",)
    letter: str

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def __repr__(self) -> str:
        return self.letter

    def __reduce__(self) -> Any:
        return self.letter  # the module's name for it: identity survives copies and pickles

    @property
    def dual(self) -> SpmdType:
        """The type of the gradient: R and P swap, the others stay."""
        return _DUAL.get(self, self)


class Shard(SpmdType):
    """`S(dim)`: the concatenation over the axis along tensor dim `dim`; S(-1): along the last of what it is said of.

    `sizes` are the ranks' lengths along `dim` where they are not what an even split gives (`split_sizes`).
    """

    __slots__ = ("dim", "sizes")
    dim: int
    sizes: tuple[int, ...] | None
    _interned: ClassVar[dict[tuple[int, tuple[int, ...] | None], Shard]] = {}

    def __new__(cls, dim: int, sizes: tuple[int, ...] | None = None) -> Shard:
        if not isinstance(dim, int) or isinstance(dim, bool):
            raise SpmdTypeError(
                Problem(
                    where=f"S({dim!r})",
                    what="it names no dim",
                    fix="S(0), S(1), ..., S(-1)",
                    code=Code.LAYOUT,
                )
            )
        if sizes is not None:
            demand(f"S({dim}, ...)", "sizes", sizes, WHOLES)
            sizes = tuple(sizes)
            if sizes and min(sizes) < 0:
                raise SpmdTypeError(
                    Problem(
                        where=f"S({dim}, {sizes})",
                        what="a shard of negative length",
                        fix="lengths of 0 or more",
                        code=Code.LAYOUT,
                    )
                )
        found = cls._interned.get((dim, sizes))
        if found is None:
            found = super().__new__(cls)
            found.letter, found.dim, found.sizes = "S", dim, sizes
            found = cls._interned.setdefault((dim, sizes), found)
        return found

    def __init__(self, dim: int, sizes: tuple[int, ...] | None = None) -> None:
        pass  # all is set where the instance is interned

    def of(self, dims: int) -> Shard:
        """The same of a tensor of so many dims, counted from the front."""
        return self if self.dim >= 0 else Shard(self.dim + dims, self.sizes) if self.dim + dims >= 0 else self

    def __repr__(self) -> str:
        return f"S({self.dim})" if self.sizes is None else f"S({self.dim}, {self.sizes})"

    def __reduce__(self) -> Any:
        return Shard, (self.dim, self.sizes)


R: Final = SpmdType("R")
I: Final = SpmdType("I")
V: Final = SpmdType("V")
P: Final = SpmdType("P")
S = Shard

_DUAL: dict[SpmdType, SpmdType] = {R: P, P: R}


def shown_type(kind: object) -> str:
    """What was given where a type belongs."""
    return "S itself" if kind is S else shown(kind)


def instead_of(kind: object) -> str:
    """What to write where something else than a type was given."""
    if kind is S:
        return "S(0) where dim 0 is cut, S(dim) where another one is"
    return f"{kind}, imported from meshwright.spmd" if kind in ("R", "I", "V", "P") else "one of R, I, V, P, S(dim)"


def split_sizes(length: int, parts: int) -> tuple[int, ...]:
    """The lengths of an even split of `length` into `parts`: full pieces first, as DTensor and FSDP cut.

    `split_sizes(5, 2) == (3, 2)`; pieces at the end may be empty.
    """
    full = -(-length // parts)
    return tuple(max(0, min(full, length - i * full)) for i in range(parts))

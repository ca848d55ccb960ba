"""Changes of type on one axis: which step carries them out, forward and backward.

A *step* changes the type on one axis and keeps what the tensor denotes. Its backward is the step between the duals,
in reverse: the table below is closed under that, so a forward step fixes its backward step.

    forward                  backward              forward                  backward
    S/V -> R  all_gather     P -> S/V reduce_scatter   P -> R  all_reduce      P -> R  all_reduce
    S/V -> I  all_gather     I -> S/V slice            P -> I  all_reduce      I -> R  retag
    P -> S/V  reduce_scatter S/V -> R all_gather       I -> R  retag           P -> I  all_reduce
    S(i)->S(j) all_to_all    S(j)->S(i) all_to_all     I -> S/V slice          S/V -> I all_gather
    R -> S/V  slice          S/V -> P pad              R -> P  mask            R -> P  mask
    R -> I    retag (expert) I -> P   mask             S/V -> P pad            R -> S/V slice

Two more keep the local value and change what it denotes; the author claims that this is meant (`reinterpret`):
V -> P, whose backward is R -> V.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import Shard, SpmdType


class Op(Enum):
    """What a step does with the local tensors of the axis."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    SLICE = "slice"
    PAD = "pad"
    MASK = "mask"
    RETAG = "retag"

    @property
    def communicates(self) -> bool:
        """Whether ranks exchange anything."""
        return self in (Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_REDUCE, Op.ALL_TO_ALL)


_BY_LETTER: Final[dict[str, Op]] = {
    "S R": Op.ALL_GATHER,
    "S I": Op.ALL_GATHER,
    "S P": Op.PAD,
    "S S": Op.ALL_TO_ALL,
    "P R": Op.ALL_REDUCE,
    "P I": Op.ALL_REDUCE,
    "P S": Op.REDUCE_SCATTER,
    "I R": Op.RETAG,
    "I S": Op.SLICE,
    "I P": Op.MASK,
    "R S": Op.SLICE,
    "R P": Op.MASK,
    "R I": Op.RETAG,
}
CHANGES: Final[dict[str, Op]] = {
    key.replace("S", place): op for key, op in _BY_LETTER.items() for place in "SV" if place == "S" or key != "S S"
}
"""(source letter, destination letter) -> the step that keeps what the tensor denotes. V stands where S stands:
the gathered list is stacked along a new dim 0."""

CLAIMS: Final[frozenset[str]] = frozenset({"V P", "R V"})
"""Changes of meaning that keep the local value; only `reinterpret` makes them."""

EXPERT: Final[frozenset[str]] = frozenset({"R I"})
"""Right only where the author knows more than the types say; only with `expert=True`, or as the backward of I -> P."""


@dataclass(frozen=True)
class Step:
    """One change of type on one axis.

    axis: name of the axis; src, dst: the types before and after; op: what it does.
    """

    axis: str
    src: SpmdType
    dst: SpmdType
    op: Op

    @property
    def backward(self) -> Step:
        """The step that carries the gradient: from the dual of `dst` to the dual of `src`."""
        src, dst = self.dst.dual, self.src.dual
        if self.is_claim:
            return Step(self.axis, src, dst, Op.RETAG)
        return Step(self.axis, src, dst, CHANGES[f"{src.letter} {dst.letter}"])

    @property
    def is_claim(self) -> bool:
        """It keeps the local value and changes what it denotes."""
        return self.op is Op.RETAG and f"{self.src.letter} {self.dst.letter}" in CLAIMS

    def __str__(self) -> str:
        return f"{self.axis}: {self.src!r} -> {self.dst!r} {self.op.value}"


def step(axis: str, src: SpmdType, dst: SpmdType, *, expert: bool = False) -> Step | None:
    """The step from `src` to `dst` on `axis` that keeps what the tensor denotes; None where nothing is to do.

    Errors: `SpmdTypeError` where there is none, naming the types that can be reached from `src`.
    """
    if src is dst:
        return None
    key = f"{src.letter} {dst.letter}"
    if key not in CHANGES or (key in EXPERT and not expert):
        raise SpmdTypeError(_refused(axis, src, dst, key))
    if isinstance(src, Shard) and isinstance(dst, Shard) and src.dim == dst.dim:
        raise SpmdTypeError(
            Problem(
                where=f"axis {axis!r}",
                what=f"{src!r} -> {dst!r} would move rows between ranks of one dim",
                why="the sizes of a sharded dim stay as they were cut",
                fix=f"go through the whole: {src!r} -> R, then R -> {dst!r}",
            )
        )
    return Step(axis, src, dst, CHANGES[key])


def claim(axis: str, src: SpmdType, dst: SpmdType) -> Step | None:
    """The step that reads the local value of type `src` as one of type `dst`.

    Errors: `SpmdTypeError` for a pair other than V -> P and R -> V.
    """
    if src is dst:
        return None
    key = f"{src.letter} {dst.letter}"
    if key not in CLAIMS:
        raise SpmdTypeError(
            Problem(
                where=f"axis {axis!r}",
                what=f"{src!r} cannot be reinterpreted as {dst!r}",
                why="reinterpret keeps the local value, and only V -> P and R -> V have a gradient that does so too",
                fix=f"redistribute(x, {axis!r}, src={src!r}, dst={dst!r})" if key in CHANGES else "",
            )
        )
    return Step(axis, src, dst, Op.RETAG)


def _refused(axis: str, src: SpmdType, dst: SpmdType, key: str) -> Problem:
    reachable = [pair[-1].replace("S", "S(i)") for pair in CHANGES if pair[0] == src.letter and pair not in EXPERT]
    if key in EXPERT:
        return Problem(
            where=f"axis {axis!r}",
            what=f"{src!r} -> {dst!r} is for experts only",
            why="the types cannot show that the ranks' gradients agree afterwards",
            fix=f"state that you know it: expert=True; or one of {src!r} -> {', '.join(reachable)}",
        )
    return Problem(
        where=f"axis {axis!r}",
        what=f"there is no step {src!r} -> {dst!r}",
        why="a sum over ranks is pending only in P" if "P" in key else "",
        fix=f"from {src!r} these can be reached: {', '.join(reachable)}",
    )


def demand_types(axis: str, *kinds: object) -> None:
    """Errors: `SpmdTypeError` for what is no type."""
    for kind in kinds:
        if not isinstance(kind, SpmdType):
            raise SpmdTypeError(
                Problem(
                    where=f"axis {axis!r}",
                    what=f"{kind!r} is no type",
                    why="a tensor has a type on each axis",
                    fix="one of R, I, V, P, S(dim)",
                )
            )

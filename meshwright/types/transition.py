"""Changes of type: which step carries them out, forward and backward.

A *step* changes the type on one axis, or on several that act as one flattened axis, and keeps what the tensor denotes.
Its backward is the step between the duals, in reverse: the table below is closed under that, so a forward step fixes
its backward step.

    forward                  backward              forward                  backward
    S/V -> R  all_gather     P -> S/V reduce_scatter   P -> R  all_reduce      P -> R  all_reduce
    S/V -> I  all_gather     I -> S/V slice            P -> I  all_reduce      I -> R  retag
    P -> S/V  reduce_scatter S/V -> R all_gather       I -> R  retag           P -> I  all_reduce
    S(i)->S(j) all_to_all    S(j)->S(i) all_to_all     I -> S/V slice          S/V -> I all_gather
    R -> S/V  slice          S/V -> P pad              R -> P  mask            R -> P  mask
    R -> I    retag (expert) I -> P   mask             S/V -> P pad            R -> S/V slice

Two more keep the local value and change what it denotes; the author claims that this is meant (`reinterpret`):
V -> P, whose backward is R -> V. Others are made of these and of retags: R -> P is R -> V -> P, and from I one goes by
way of R.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import Enum
from typing import Final

from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import FLAG, NAME, demand
from meshwright.types.kinds import I, P, R, Shard, SpmdType, V, instead_of, shown_type
from meshwright.types.layout import SpmdLayout


class Op(Enum):
    """What a step does with the local tensors of the axis."""

    __hash__ = object.__hash__  # by identity, as members are compared: a key of every call

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
        return self in _COLLECTIVES


_COLLECTIVES: Final = (Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_REDUCE, Op.ALL_TO_ALL)

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
"""Right only where the author knows more than the types say; only with `expert_mode`, or as the backward of I -> P."""


@dataclass(frozen=True)
class Step:
    """One change of type, alike on one axis or on several that are flattened into one.

    axes: names of the axes, the outermost first; src, dst: the type on each of them before and after; op: what it does.
    """

    axes: tuple[str, ...]
    src: SpmdType
    dst: SpmdType
    op: Op

    @property
    def axis(self) -> str:
        """The name of the axis; of several, their names joined by commas."""
        return self.axes[0] if len(self.axes) == 1 else ",".join(self.axes)

    @property
    def where(self) -> str:
        """The axes, as errors name them."""
        if len(self.axes) == 1:
            return f"axis {self.axes[0]!r}"
        return f"axes {', '.join(map(repr, self.axes))}"

    @property
    def before(self) -> SpmdLayout:
        """The types on the step's axes before it, with the order in which they cut a dim."""
        return SpmdLayout(dict.fromkeys(self.axes, self.src))

    @property
    def after(self) -> SpmdLayout:
        """The types on the step's axes after it."""
        return SpmdLayout(dict.fromkeys(self.axes, self.dst))

    @property
    def backward(self) -> Step:
        """The step that carries the gradient: from the dual of `dst` to the dual of `src`."""
        src, dst = self.dst.dual, self.src.dual
        if self.is_claim:
            return Step(self.axes, src, dst, Op.RETAG)
        if self.op is Op.ALL_TO_ALL:
            return Step(self.axes, src, dst, Op.ALL_TO_ALL)
        return Step(self.axes, src, dst, CHANGES[f"{src.letter} {dst.letter}"])

    @property
    def is_claim(self) -> bool:
        """It keeps the local value and changes what it denotes."""
        return self.op is Op.RETAG and f"{self.src.letter} {self.dst.letter}" in CLAIMS

    def __str__(self) -> str:
        axes = self.axes[0] if len(self.axes) == 1 else f"({','.join(self.axes)})"
        return f"{axes}: {self.src!r} -> {self.dst!r} {self.op.value}"


@dataclass(frozen=True, init=False)
class Exchange(Step):
    """The all_to_all by which axes change the dims that they cut, or their order, each in its own way.

    cuts: the layouts on the axes before and after, all sharded. `src` and `dst` are the types of the first axis.
    """

    cuts: tuple[SpmdLayout, SpmdLayout]

    def __init__(self, axes: tuple[str, ...], before: SpmdLayout, after: SpmdLayout) -> None:
        values = {"axes": axes, "src": before[axes[0]], "dst": after[axes[0]], "op": Op.ALL_TO_ALL}
        for name, value in (*values.items(), ("cuts", (before, after))):
            object.__setattr__(self, name, value)

    @property
    def before(self) -> SpmdLayout:
        """The types on the step's axes before it, with the order in which they cut a dim."""
        return self.cuts[0]

    @property
    def after(self) -> SpmdLayout:
        """The types on the step's axes after it, with the order in which they cut a dim."""
        return self.cuts[1]

    @property
    def backward(self) -> Step:
        """The exchange from `after` to `before`: shards are their own duals."""
        return Exchange(self.axes, self.after, self.before)

    def __str__(self) -> str:
        return f"({','.join(self.axes)}): {_cut(self.before)} -> {_cut(self.after)} {self.op.value}"


def _cut(layout: SpmdLayout) -> str:
    """`S(0)@(cp,tp) S(1)@dp`."""
    dims = sorted({kind.dim for kind in layout.values() if isinstance(kind, Shard)})
    cuts = ((dim, layout.sharding(dim)) for dim in dims)
    return " ".join(f"S({dim})@{axes[0] if len(axes) == 1 else '(' + ','.join(axes) + ')'}" for dim, axes in cuts)


def step(axis: str, src: SpmdType, dst: SpmdType, *, expert_mode: bool = False) -> Step | None:
    """The step from `src` to `dst` on `axis` that keeps what the tensor denotes; None where nothing is to do.

    Errors: `SpmdTypeError` where there is none, naming the types that can be reached from `src`.
    """
    demand("step", "axis", axis, NAME)
    demand("step", "expert_mode", expert_mode, FLAG)
    demand_types(axis, src, dst)
    if src is dst:
        return None
    key = f"{src.letter} {dst.letter}"
    if key not in CHANGES or (key in EXPERT and not expert_mode):
        raise SpmdTypeError(_refused(axis, src, dst, key))
    if isinstance(src, Shard) and isinstance(dst, Shard) and src.dim == dst.dim:
        raise SpmdTypeError(
            Problem(
                where=f"axis {axis!r}",
                what=f"{src!r} -> {dst!r} would move rows between ranks of one dim",
                why="the sizes of a sharded dim stay as they were cut",
                fix=f"go through the whole: {src!r} -> R, then R -> {dst!r}",
                code=Code.NO_STEP,
            )
        )
    return Step((axis,), src, dst, CHANGES[key])


_CLAIMED: Final[dict[str, tuple[SpmdType, ...]]] = {
    "V P": (V, P),
    "R V": (R, V),
    "R P": (R, V, P),
    "I V": (I, R, V),
    "I P": (I, R, V, P),
    "I R": (I, R),
    "R I": (R, I),
}
"""(source letter, destination letter) -> the types that `reinterpret` goes through."""


def claim(axis: str, src: SpmdType, dst: SpmdType, *, expert_mode: bool = False) -> tuple[Step, ...]:
    """The steps that read the local value of type `src` as one of type `dst`; none where nothing is to do.

    Errors: `SpmdTypeError` for a pair of which no local value is both, and for R -> I without `expert_mode`.
    """
    if src is dst:
        return ()
    key = f"{src.letter} {dst.letter}"
    if key not in _CLAIMED:
        raise SpmdTypeError(
            Problem(
                where=f"axis {axis!r}",
                what=f"{src!r} cannot be reinterpreted as {dst!r}",
                why="reinterpret keeps the local value, and its gradient must do so too: from V only to P, from R and "
                "I to any of R, I, V, P",
                fix=f"redistribute(x, {axis!r}, src={src!r}, dst={dst!r})" if key in CHANGES else "",
                code=Code.NO_STEP,
            )
        )
    if key in EXPERT and not expert_mode:
        raise SpmdTypeError(_refused(axis, src, dst, key))
    kinds = _CLAIMED[key]
    return tuple(Step((axis,), before, after, Op.RETAG) for before, after in itertools.pairwise(kinds))


def _refused(axis: str, src: SpmdType, dst: SpmdType, key: str) -> Problem:
    reachable = [pair[-1].replace("S", "S(i)") for pair in CHANGES if pair[0] == src.letter and pair not in EXPERT]
    if key in EXPERT:
        return Problem(
            where=f"axis {axis!r}",
            what=f"{src!r} -> {dst!r} is for experts only",
            why="the types cannot show that the ranks' gradients agree afterwards",
            fix=f"state that you know it: expert_mode=True; or one of {src!r} -> {', '.join(reachable)}",
            code=Code.NO_STEP,
        )
    if src.letter == "V" and dst.letter == "S":
        return Problem(
            where=f"axis {axis!r}",
            what=f"there is no step {src!r} -> {dst!r}",
            why="every rank keeps what it holds: which dim its part is of is said, not done",
            fix=f"assert_type(x, {{{axis!r}: {dst!r}}})",
            code=Code.NO_STEP,
        )
    return Problem(
        where=f"axis {axis!r}",
        what=f"there is no step {src!r} -> {dst!r}",
        why="a sum over ranks is pending only in P" if "P" in key else "",
        fix=f"from {src!r} these can be reached: {', '.join(reachable)}",
        code=Code.NO_STEP,
    )


def demand_types(axis: str, *kinds: object) -> None:
    """Errors: `SpmdTypeError` for what is no type."""
    for kind in kinds:
        if not isinstance(kind, SpmdType):
            raise SpmdTypeError(
                Problem(
                    where=f"axis {axis!r}",
                    what=f"{shown_type(kind)} is no type",
                    why="a tensor has a type on each axis",
                    fix=instead_of(kind),
                    code=Code.LAYOUT,
                )
            )

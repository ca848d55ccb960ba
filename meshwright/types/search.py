"""The cheapest way from one layout to another: a shortest path over the layouts in between.

A step is legal where

- its axes are the innermost of every dim that they leave, and become the innermost of every dim that they join;
- its type change is in the table, and no step for experts unless that is asked for;
- each axis keeps its gradient: one whose type stays keeps it all the way, unless it cuts a dim from inside an axis
  that has to go; then it becomes whole, or another dim's, and is cut again;
- a dim is cut only over axes that cut it together in the source or in the destination: what divides there divides
  on the way.

Shards with stated lengths move one axis at a time: their pieces are not those of a flattened axis.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Final, NamedTuple

from meshwright.types.kinds import I, P, R, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.transition import CHANGES, Exchange, Op, Step

Kinds = tuple[SpmdType, ...]
Axes = tuple[int, ...]
"""Axes are numbers here, outermost first."""
Orders = tuple[Axes, ...]
"""For each dim the axes that cut it."""
State = tuple[Kinds, Orders]
Cost = tuple[int, int, int]
"""Bytes, collectives, steps."""


PATIENCE: Final = 25
"""States that are looked at for the fewest bytes. Layouts that cut dims over four or five axes in other orders may want
more: from then on the search makes straight for the goal, and may find a plan that moves more."""
HASTE: Final = 1000
"""How much more what is left counts from then on."""


def moved(op: Op, ranks: int, size: int) -> int:
    """What one rank sends in a collective over `ranks` ranks, each with `size` bytes of input.

    Exact where `ranks` divides `size`. An exchange counts as if every rank kept an even share.
    """
    if op is Op.ALL_GATHER:
        return (ranks - 1) * size
    if op is Op.ALL_REDUCE:
        return 2 * (ranks - 1) * size // ranks
    return (ranks - 1) * size // ranks if op.communicates else 0


def resized(op: Op, ranks: int, size: int) -> int:
    """The bytes that a rank holds after a step, from those before."""
    if op in (Op.ALL_GATHER, Op.PAD):
        return size * ranks
    return size // ranks if op in (Op.REDUCE_SCATTER, Op.SLICE) else size


class Move(NamedTuple):
    """A step between two states."""

    axes: Axes
    op: Op
    before: State
    after: State


class Search:
    """From `src` to `dst`, layouts on the same axes. degree: axis -> ranks."""

    def __init__(self, src: SpmdLayout, dst: SpmdLayout, degree: Mapping[str, int], expert_mode: bool = False) -> None:
        ranked = [axis for axis in degree if axis in src]  # a view names its outermost axis first
        self.names = (*ranked, *sorted(axis for axis in src if axis not in ranked))  # alike in every process
        self.degree = tuple(degree.get(axis, 1) for axis in self.names)
        self.expert_mode = expert_mode
        self.dims = sorted({kind.dim for kind in (*src.values(), *dst.values()) if isinstance(kind, Shard)})
        self.start, self.goal = self._state(src), self._state(dst)
        self.wanted = self.goal[0]
        self.together = [
            (frozenset(before), frozenset(after)) for before, after in zip(self.start[1], self.goal[1], strict=True)
        ]
        self.rank_in_goal = {axis: rank for order in self.goal[1] for rank, axis in enumerate(order)}
        self.place_in_goal = {axis: place for place, order in enumerate(self.goal[1]) for axis in order}
        self.later = ["R" if kind is I else kind.letter for kind in self.wanted]
        self._products: dict[Axes, int] = {}
        self._out: dict[Orders, list[tuple[Axes, SpmdType, Op, Orders]]] = {}
        self._exchanged: dict[Orders, dict[Orders, tuple[Axes, Axes]]] = {}

    def _state(self, layout: SpmdLayout) -> State:
        number = {axis: place for place, axis in enumerate(self.names)}
        orders = tuple(tuple(number[axis] for axis in layout.sharding(dim)) for dim in self.dims)
        return tuple(layout[axis] for axis in self.names), orders

    def steps(self) -> tuple[Step, ...]:
        """The steps of the path with the fewest bytes; of those, the fewest collectives, then the fewest steps."""
        ticket = itertools.count()
        best: dict[State, Cost] = {self.start: (0, 0, 0)}
        came: dict[State, Move] = {}
        size = math.prod(self.degree) ** 2  # a number of bytes that every division divides
        heap = [((0, 0, 0), next(ticket), best[self.start], self.start, size)]
        haste = 1
        for looked_at in itertools.count():
            if looked_at == PATIENCE:
                haste = HASTE
                heap = [
                    (self._hoped(cost, state, size, haste), number, cost, state, size)
                    for _, number, cost, state, size in heap
                ]
                heapq.heapify(heap)
            _, _, cost, state, size = heapq.heappop(heap)
            if state == self.goal:
                return tuple(self._step(move) for move in self._path(came))
            if cost > best[state]:
                continue
            for move in self._moves(state):
                ranks = self._ranks(move.axes)
                speaks = move.op.communicates and ranks > 1
                total = (cost[0] + moved(move.op, ranks, size), cost[1] + speaks, cost[2] + 1)
                if move.after not in best or total < best[move.after]:
                    best[move.after] = total
                    came[move.after] = move
                    left = resized(move.op, ranks, size)
                    hoped = self._hoped(total, move.after, left, haste)
                    heapq.heappush(heap, (hoped, next(ticket), total, move.after, left))
        raise AssertionError(f"no way from {self.start} to {self.goal}")

    def _hoped(self, cost: Cost, state: State, size: int, haste: int) -> Cost:
        """The cost of the path through a state, if all went as well as can be; what is left counts `haste` times."""
        return (cost[0] + haste * self._least(state[0], size), *cost[1:])

    def _least(self, kinds: Kinds, size: int) -> int:
        """Bytes that are moved at least from here: what has to be gathered, summed and exchanged, each at its best."""
        sliced = scattered = gathered = summed = exchanged = 1
        for kind, wanted, ranks in zip(kinds, self.wanted, self.degree, strict=True):
            if kind is wanted:
                continue
            if isinstance(kind, Shard):
                if isinstance(wanted, Shard):
                    exchanged *= ranks
                elif wanted is not P:
                    gathered *= ranks
            elif kind is P:
                if isinstance(wanted, Shard):
                    scattered *= ranks
                else:
                    summed *= ranks
            elif isinstance(wanted, Shard):
                sliced *= ranks
        whole = size // sliced
        cut = whole // scattered
        return (
            moved(Op.REDUCE_SCATTER, scattered, whole)
            + moved(Op.ALL_GATHER, gathered, cut)
            + moved(Op.ALL_REDUCE, summed, cut)
            + moved(Op.ALL_TO_ALL, exchanged, cut)
        )

    def _ranks(self, axes: Axes) -> int:
        found = self._products.get(axes)
        if found is None:
            found = self._products[axes] = math.prod([self.degree[axis] for axis in axes])
        return found

    def _path(self, came: Mapping[State, Move]) -> list[Move]:
        path: list[Move] = []
        state = self.goal
        while state != self.start:
            path.append(came[state])
            state = came[state].before
        return path[::-1]

    def _step(self, move: Move) -> Step:
        axes = tuple(self.names[axis] for axis in move.axes)
        src, dst = move.before[0][move.axes[0]], move.after[0][move.axes[0]]
        if move.op is not Op.ALL_TO_ALL or self._as_one(move):
            return Step(axes, src, dst, move.op)
        before, after = (self._layout(state, frozenset(move.axes)) for state in (move.before, move.after))
        return Exchange(axes, before, after)

    def _as_one(self, move: Move) -> bool:
        """All axes cut one dim before and another one after, nested in one order: they are one flattened axis."""
        before, after = (self._layout(state, frozenset(move.axes)) for state in (move.before, move.after))
        kinds = {(before[axis], after[axis]) for axis in before}
        ((src, dst), *others) = kinds
        return (
            not others and src is not dst and tuple(before) == tuple(after) == tuple(self.names[a] for a in move.axes)
        )

    def _layout(self, state: State, axes: frozenset[int]) -> SpmdLayout:
        kinds, orders = state
        return SpmdLayout({self.names[axis]: kinds[axis] for order in orders for axis in order if axis in axes})

    # What can be done in a state.

    def _moves(self, state: State) -> Iterator[Move]:
        retypings = list(self._retypings(state))
        quiet = [move for move in retypings if not move.op.communicates]
        if quiet:
            yield quiet[0]  # it moves nothing and is in the way of nothing: when it is done makes no difference
            return
        yield from retypings
        joins = list(self._joins(state))
        settled = next((move for move in joins if move.op is Op.SLICE and self._settles(move)), None)
        if settled is not None:
            yield settled  # all that follows moves less, and the axes stand where they end
            return
        yield from joins
        yield from self._leavings(state)
        yield from self._exchanges(state)

    def _retypings(self, state: State) -> Iterator[Move]:
        """Steps that neither start nor end in a shard: all axes with the same change of type at once."""
        kinds, orders = state
        alike: dict[tuple[SpmdType, SpmdType], list[int]] = {}
        sharded_later = []
        for axis, (kind, wanted) in enumerate(zip(kinds, self.wanted, strict=True)):
            if kind is wanted or isinstance(kind, Shard):
                continue
            if not isinstance(wanted, Shard):
                alike.setdefault((kind, wanted), []).append(axis)
            elif kind is P:
                sharded_later.append(axis)
        for axes, whole in self._sums(alike.get((P, R), []), alike.get((P, I), []), sharded_later):
            yield Move(axes, Op.ALL_REDUCE, state, (self._with(kinds, axes, whole), orders))
        for (kind, wanted), found in alike.items():
            op = CHANGES.get(f"{kind.letter} {wanted.letter}")
            if op not in (None, Op.ALL_REDUCE) and (not (kind is R and wanted is I) or self.expert_mode):
                for group in [tuple(found)] if V not in (kind, wanted) else [(axis,) for axis in found]:
                    yield Move(group, op, state, (self._with(kinds, group, wanted), orders))

    def _sums(self, to_r: list[int], to_i: list[int], to_shard: list[int]) -> dict[tuple[Axes, SpmdType], None]:
        """The axes of an all_reduce and the type that they become. I and then R has the same gradient as R."""
        some = [(), *_subsets(to_shard)]
        wholes: tuple[tuple[list[int], SpmdType], ...] = ((to_r, R), (to_i, I), ([*to_r, *to_i], I), ([], I))
        groups = ((tuple(sorted((*chosen, *ends))), kind) for chosen in some for ends, kind in wholes)
        return {(axes, kind): None for axes, kind in groups if axes}

    def _joins(self, state: State) -> Iterator[Move]:
        """P, R or I -> S(i): any of the axes that have the same change of type, in their final order."""
        kinds, orders = state
        for place, order in enumerate(orders):
            alike: dict[SpmdType, list[int]] = {}
            for axis in self.goal[1][place]:
                if not isinstance(kinds[axis], Shard):
                    alike.setdefault(kinds[axis], []).append(axis)
            for kind, axes in alike.items():
                op = Op.REDUCE_SCATTER if kind is P else Op.SLICE
                for group in _subsets(axes):
                    joined = (*order, *group)
                    if self._even(group) and self._divides(place, joined):
                        changed = self._kinds_of(kinds, group)
                        yield Move(group, op, state, (changed, _at(orders, place, joined)))

    def _settles(self, move: Move) -> bool:
        """Each dim that the axes join is cut as in the end, up to the last of them."""
        places = {self.place_in_goal[axis] for axis in move.axes}
        return all(move.after[1][place] == self.goal[1][place][: len(move.after[1][place])] for place in places)

    def _leavings(self, state: State) -> Iterator[Move]:
        """S(i) -> R, I or P: the innermost axes of a dim. Those that end in another type become I, where all do."""
        kinds, orders = state
        shrinks = any(
            isinstance(wanted, Shard) and not isinstance(kind, Shard)
            for kind, wanted in zip(kinds, self.wanted, strict=True)
        )
        for group, kind, op, after in self._ways_out(orders):
            if op is Op.PAD and not shrinks and any(self.wanted[axis] is not P for axis in group):
                continue  # a padded sum is worth its bytes only where the tensor shrinks before it is taken
            yield Move(group, op, state, (self._with(kinds, group, kind), after))

    def _ways_out(self, orders: Orders) -> list[tuple[Axes, SpmdType, Op, Orders]]:
        found = self._out.get(orders)
        if found is None:
            found = self._out[orders] = []
            for place, order in enumerate(orders):
                for count in range(1, len(order) + 1):
                    group, rest = order[-count:], order[:-count]
                    if not self._even(group):
                        break
                    after = _at(orders, place, rest)
                    whole = {self.wanted[axis] for axis in group if self.wanted[axis] in (R, I)}
                    if len(whole) < 2:
                        found.append((group, whole.pop() if whole else I, Op.ALL_GATHER, after))
                    found.append((group, P, Op.PAD, after))
        return found

    def _exchanges(self, state: State) -> Iterator[Move]:
        """all_to_all among the innermost axes of each dim: into the dims where they end, and into their final order."""
        kinds, orders = state
        for after, (group, going) in self._reorderings(orders).items():
            yield Move(group, Op.ALL_TO_ALL, state, (self._kinds_of(kinds, going), after))

    def _reorderings(self, orders: Orders) -> dict[Orders, tuple[Axes, Axes]]:
        """What an exchange makes of `orders` -> the fewest axes that it takes, and those of them that change dims."""
        found = self._exchanged.get(orders)
        if found is None:
            found = self._exchanged[orders] = {}
            for counts in itertools.product(*map(self._counts, orders, self.goal[1])):
                inner = [order[len(order) - count :] for order, count in zip(orders, counts, strict=True)]
                group = tuple(axis for axes in inner for axis in axes)
                if group and self._even(group):
                    for after, going in self._placings(orders, inner, group):
                        if after not in found or self._ranks(group) < self._ranks(found[after][0]):
                            found[after] = tuple(sorted(group)), going
            found.pop(orders, None)
        return found

    def _counts(self, order: Axes, goal: Axes) -> range:
        """How many of the innermost axes of a dim may be put anew: not those that stand where they end."""
        settled = 0
        for axis, wanted in zip(order, goal, strict=False):
            if axis != wanted:
                break
            settled += 1
        return range(len(order) - settled + 1)

    def _placings(self, orders: Orders, inner: list[Axes], group: Axes) -> Iterator[tuple[Orders, Axes]]:
        """The innermost axes of each dim put anew, into the dims where they end or into another order where they are.

        Those that must leave a dim stand behind those that stay, the ones that end in P, in a whole or in another
        shard together: in any order of the three, for each can be the next to go.
        """
        kept = [order[: len(order) - len(axes)] for order, axes in zip(orders, inner, strict=True)]
        movers = tuple(axis for axis in group if axis in self.place_in_goal)
        for going in dict.fromkeys((movers, ())):
            if not going and (all(len(axes) < 2 for axes in inner) or (movers and len(movers) == len(group))):
                continue  # nothing changes, or nothing has to leave
            leaving = [axis for axis in group if axis not in going]
            letters = sorted({self.later[axis] for axis in leaving}) if len(leaving) > 1 else [""]
            free: list[list[int]] = [[] for _ in orders]
            for place, axes in enumerate(inner):
                for axis in axes:
                    free[self.place_in_goal[axis] if axis in going else place].append(axis)
            for last in itertools.permutations(letters):
                after = tuple(
                    (*there, *(sorted(new, key=partial(self._nesting, place, last)) if len(new) > 1 else new))
                    for place, (there, new) in enumerate(zip(kept, free, strict=True))
                )
                if not going or all(map(self._divides, range(len(orders)), after)):
                    yield after, going

    def _nesting(self, place: int, last: tuple[str, ...], axis: int) -> tuple[int, int]:
        """Those that stay in the dim come first, in their final order."""
        if self.place_in_goal.get(axis) == place:
            return -1, self.rank_in_goal[axis]
        return last.index(self.later[axis]) if len(last) > 1 else 0, axis

    def _divides(self, place: int, order: Axes) -> bool:
        """The dim is cut over axes that cut it together in the source or in the destination."""
        before, after = self.together[place]
        return before.issuperset(order) or after.issuperset(order)

    def _even(self, group: Axes) -> bool:
        return len(group) == 1 or not any(axis in self._stated for axis in group)

    @cached_property
    def _stated(self) -> frozenset[int]:
        """The axes with a shard that states its lengths."""
        return frozenset(
            axis
            for kinds in (self.start[0], self.goal[0])
            for axis, kind in enumerate(kinds)
            if isinstance(kind, Shard) and kind.sizes is not None
        )

    def _with(self, kinds: Kinds, group: Axes, kind: SpmdType) -> Kinds:
        changed = list(kinds)
        for axis in group:
            changed[axis] = kind
        return tuple(changed)

    def _kinds_of(self, kinds: Kinds, group: Axes) -> Kinds:
        changed = list(kinds)
        for axis in group:
            changed[axis] = self.wanted[axis]
        return tuple(changed)


def _at(orders: Orders, place: int, order: Axes) -> Orders:
    return (*orders[:place], order, *orders[place + 1 :])


def _subsets(axes: list[int]) -> Iterator[Axes]:
    """All non-empty ones, the largest first, in the order of `axes`."""
    for count in range(len(axes), 0, -1):
        yield from itertools.combinations(axes, count)

"""What a region takes: its arguments, and whatever else its body uses that was not made in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils.weak import WeakIdKeyDictionary

from meshwright.check import source
from meshwright.check.author import Types
from meshwright.check.closure import closed_over
from meshwright.check.demand import tensors_of
from meshwright.check.refusal import Refused
from meshwright.check.tag import read
from meshwright.codes import Code
from meshwright.types.kinds import R, Shard, V

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck


class Entering(NamedTuple):
    """A tensor that a region takes. wants: a gradient flows to it; grad: what is declared of that; None where no place
    is to declare it.
    """

    name: str
    layout: Types
    wants: bool
    grad: Types | None


def demand_declared(entering: Sequence[Entering]) -> None:
    """Where R meets what differs from rank to rank, its gradient is declared, if it has one.

    Errors: `Refused` where it is not.
    """
    for one in entering:
        for axis, kind in one.layout.items() if one.wants else ():
            others = [other.layout[axis] for other in entering if axis in other.layout]
            differs = [other for other in others if other is V or isinstance(other, Shard)]
            if kind is R and differs and axis not in (one.grad or {}):
                declared = f"in_grad_types with {{{axis!r}: P}} for {one.name}"
                if one.grad is None:
                    declared = f"{one.name} as a positional argument, with {{{axis!r}: P}} for it in in_grad_types"
                raise Refused(
                    f"{one.name} is R on axis {axis!r} and meets {differs[0]!r} in a region that declares no gradient",
                    f"R meets {differs[0]!r}: the gradient is P, each rank's own part; there is no default",
                    declared,
                    code=Code.REGION,
                )


class Region:
    """A region while its body runs.

    declared: what is known of its arguments; args: the positional ones, whose tensors have a place to be declared.
    """

    def __init__(
        self, declared: Sequence[Entering], args: Any, kwargs: Mapping[str, Any], function: Callable[..., Any]
    ) -> None:
        self._entering = list(declared)
        self._inside: WeakIdKeyDictionary = WeakIdKeyDictionary(dict.fromkeys(tensors_of(_listed(args)), True))
        self._names = {
            **{id(value): f"{name!r} of the closure" for name, value in closed_over(function)},
            **{id(value): f"argument {name!r}" for name, value in kwargs.items()},
        }

    def saw(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """A call in the body: what it takes from outside enters, what it makes is inside.

        Errors: `Refused` where what enters has a gradient that is declared nowhere, or makes one of another.
        """
        made = list(tensors_of(args[:1] if result is None else result))  # a write returns nothing
        taken = list(tensors_of((args, tuple(kwargs.values())))) if made else []
        flows = torch.is_grad_enabled() and any(x.requires_grad or is_functorch_wrapped_tensor(x) for x in made)
        for x in taken:
            tag = read(x)
            if tag.layout and tag.fresh is None and x not in self._inside:
                name = self._names.get(id(x)) or source.name_of(x)
                self._entering.append(Entering(name, tag.layout, flows and x.requires_grad, None))
                beside = [Entering("", read(each).layout, False, None) for each in taken if each is not x]
                demand_declared([*self._entering, *beside])
        for x in made:
            if not any(x is each for each in taken):
                self._inside[x] = True

    @contextmanager
    def entered(self, check: TypeCheck) -> Iterator[None]:
        """The body runs: what it makes is made in the region around it too."""
        around, check.region = check.region, self
        try:
            yield
        finally:
            check.region = around
            if around is not None:
                around._inside.update(self._inside)


def _listed(tree: Any) -> Any:
    """The tree with tuples in place of dicts."""
    if isinstance(tree, Mapping):
        tree = tuple(tree.values())
    return tuple(map(_listed, tree)) if isinstance(tree, (list, tuple)) else tree

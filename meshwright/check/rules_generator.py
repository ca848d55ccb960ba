"""Generators: each has a type too, R where every rank seeds it alike and V where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from meshwright.check.context import active
from meshwright.check.intercept import instead, place
from meshwright.check.seeds import know, varying_of
from meshwright.comm.number import Number, Source

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

_AXES: Final = "_spmd_axes"
"""Attribute of the state of a generator: the axes on which it differs."""


@place(lambda: torch, "manual_seed")
@place(lambda: torch.random, "manual_seed")
def seeded(original: Callable[..., Any], seed: Any) -> Any:
    """The generator that torch takes where none is named is V on the axes on which its seed differs."""
    check = active()
    made = original(int(seed))
    if check is None:
        know(None, frozenset())
    else:
        check.look()
        know(check, _axes(seed, check))
    return made


@place(lambda: torch, "get_rng_state")
@place(lambda: torch.random, "get_rng_state")
def state_of(original: Callable[..., Any]) -> Any:
    """A state knows on which axes it differs."""
    check, state = active(), original()
    if check is not None:
        check.look()
        state.__dict__[_AXES] = varying_of(check, None)
    return state


@place(lambda: torch, "set_rng_state")
@place(lambda: torch.random, "set_rng_state")
def in_state(original: Callable[..., Any], new_state: Tensor) -> Any:
    """The generator is as it was when the state was taken."""
    check, made = active(), original(new_state)
    if check is not None and _AXES in new_state.__dict__:
        know(check, new_state.__dict__[_AXES])
    return made


class _AnyGenerator(type(torch._C.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, torch._C.Generator)


class Seeded(torch._C.Generator, metaclass=_AnyGenerator):
    """torch's generator, which knows on which axes its seed differs from rank to rank."""

    axes: frozenset[str] = frozenset()

    def manual_seed(self, seed: int) -> Seeded:
        """Seed it; with a number of this rank, its random numbers are V."""
        check = active()
        self.axes = frozenset() if check is None else _axes(seed, check)
        super().manual_seed(int(seed))
        return self

    def get_state(self) -> Tensor:
        """What `set_state` takes; it knows on which axes it differs."""
        state = super().get_state()
        state.__dict__[_AXES] = self.axes
        return state

    def set_state(self, state: Tensor) -> Seeded:
        """Go on as another generator was."""
        self.axes = state.__dict__.get(_AXES, frozenset())
        super().set_state(state)
        return self

    def clone_state(self) -> Seeded:
        """Another generator in this one's state."""
        made = Seeded(device=self.device)
        return made.set_state(self.get_state())

    def seed(self) -> int:
        """Seed it by chance, on no two ranks alike."""
        check = active()
        self.axes = frozenset() if check is None else frozenset(check.degree)
        return super().seed()


instead(lambda: torch, "Generator", Seeded)


@place(lambda: torch, "seed")
@place(lambda: torch.random, "seed")
def seeded_by_chance(original: Callable[..., Any]) -> Any:
    """A seed that no two ranks have alike."""
    check = active()
    made = original()
    if check is not None:
        check.look()
        know(check, frozenset(check.degree))
    return made


def _axes(seed: Any, check: TypeCheck) -> frozenset[str]:
    """On which axes a seed differs from rank to rank."""
    if not isinstance(seed, Number) or seed.origin.source not in (Source.INDEX, Source.RANK):
        return frozenset()
    return seed.origin.axes or frozenset(check.degree)

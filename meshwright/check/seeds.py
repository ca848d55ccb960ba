"""Seeds of torch's own generator: on which axes they differ from rank to rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

_seen: Final[dict[int, frozenset[str]]] = {}
"""A seed that a call gave the generator which was seen, on any thread -> the axes on which it differs."""


def know(check: TypeCheck | None, axes: frozenset[str]) -> None:
    """The generator was seeded, with another number on each rank of these axes; check: None where nobody judges."""
    seed = torch.initial_seed()
    if check is None:
        _seen.setdefault(seed, axes)
    else:
        check.seed_varies(axes)
        check.seeds[seed] = _seen[seed] = axes


def look(check: TypeCheck) -> None:
    """The generator may have another seed than it was given last, by its own methods, which nobody sees.

    One that was never seen may be another on every rank.
    """
    seed = torch.initial_seed()
    axes = check.seeds[seed] if seed in check.seeds else _seen.get(seed)
    check.seed_varies(frozenset(check.degree) if axes is None else axes)


def varying_of(check: TypeCheck, generator: torch.Generator | None) -> frozenset[str]:
    """The axes on which the numbers of `generator`, or of torch's own, differ from rank to rank.

    All of the mesh, where it was seeded by a place on those of another.
    """
    if generator is None:
        look(check)
    axes: frozenset[str] = check.varying_seed if generator is None else getattr(generator, "axes", frozenset())
    return axes if axes <= check.degree.keys() else frozenset(check.degree)

"""Real ranks for tests: one set of processes for each number of ranks, for the whole test run."""

from __future__ import annotations

import atexit

from meshwright.parity.processes import Ranks

_started: dict[int, Ranks] = {}


def ranks(world: int) -> Ranks:
    """Started when they are first asked for, and again after a program that ended them."""
    if world not in _started or not _started[world].alive:
        _started[world] = Ranks(world)
        atexit.register(_started[world].end)
    return _started[world]

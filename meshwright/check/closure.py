"""What a function closes over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def closed_over(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Name -> value, of each variable of the scopes around a function that is assigned by now."""
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue

"""Marks of cases."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A case that the long matrices alone have."""
    return pytest.param(*values, marks=pytest.mark.slow)


def first(cases: Any, fast: int) -> list[Any]:
    """The first of `cases`, and slow ones of all others."""
    return [case if n < fast else slow(case) for n, case in enumerate(cases)]

"""A matrix for programs: one JSON document."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from meshwright.parity.cell import Cell, Matrix
from meshwright.parity.compare import WITHIN


def document(matrix: Matrix) -> str:
    """verdict: "right" or "wrong"; recipe, ranks, backends, within; cells: layout, backend, verdict, error, off (kind,
    name, error, more), law, ratio, problems (where, what, why, fix). An error that is not finite is null.
    """
    return json.dumps(
        {
            "verdict": "right" if matrix.right else "wrong",
            "recipe": matrix.recipe,
            "ranks": matrix.ranks,
            "backends": list(matrix.backends),
            "within": WITHIN,
            "cells": [_cell(cell) for cell in matrix.cells],
        },
        indent=2,
    )


def _cell(cell: Cell) -> Mapping[str, Any]:
    return {
        "layout": cell.layout,
        "backend": cell.backend,
        "verdict": cell.verdict.value,
        "error": _number(cell.error),
        "off": [asdict(off) | {"error": _number(off.error)} for off in cell.off],
        "law": cell.law.words if cell.law else None,
        "ratio": _number(cell.law.ratio) if cell.law else None,
        "problems": [
            {"where": problem.where, "what": problem.what, "why": problem.why, "fix": problem.fix}
            for problem in cell.problems
        ],
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

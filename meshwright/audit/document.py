"""A report for programs: one JSON document."""

from __future__ import annotations

import json
from dataclasses import asdict

from meshwright.audit.report import Report


def document(report: Report) -> str:
    """verdict: "right" or "wrong"; recipe, mesh, world, ep, judged_ranks; trusted: where, what, reason; problems:
    where, what, why, fix, code; collectives: as `Traffic`, bytes as numbers.
    """
    return json.dumps(
        {
            "verdict": "right" if report.right else "wrong",
            "recipe": report.recipe,
            "mesh": report.mesh,
            "world": report.world,
            "ep": report.ep,
            "judged_ranks": list(report.judged),
            "trusted": [asdict(each) for each in report.believed],
            "problems": [
                {
                    "where": problem.where,
                    "what": problem.what,
                    "why": problem.why,
                    "fix": problem.fix,
                    "code": problem.code.value if problem.code is not None else None,
                }
                for problem in report.told
            ],
            "collectives": [asdict(row) for row in report.traffic],
            "uncounted": report.uncounted,
        },
        indent=2,
    )

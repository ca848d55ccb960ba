"""How long it takes to plan a transition on 16,384 ranks: for the first time, and again.

    python -m benchmarks.planner

Layouts on five axes are drawn at random, and cut the same dims over several axes in any order. What is timed is
`plan`; the slowest is printed with its plan.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass

from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Plan, plan

DEGREE = {"pp": 4, "dp": 16, "cp": 8, "tp": 8, "ep": 4}
KINDS = (R, I, P, S(0), S(0), S(1), S(2))
AGAIN = 1000


@dataclass(frozen=True)
class Timed:
    """A plan, and the seconds that it took at first and from the cache."""

    made: Plan
    cold: float
    cached: float


def layout(source: random.Random) -> SpmdLayout:
    axes = list(DEGREE)
    source.shuffle(axes)
    return SpmdLayout({axis: source.choice(KINDS) for axis in axes})


def timed(src: SpmdLayout, dst: SpmdLayout) -> Timed:
    start = time.perf_counter()
    made = plan(src, dst, DEGREE)
    cold = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(AGAIN):
        plan(src, dst, DEGREE)
    return Timed(made, cold, (time.perf_counter() - start) / AGAIN)


def measure(count: int, seed: int) -> list[Timed]:
    """Times of `count` different transitions."""
    source = random.Random(seed)
    found: dict[tuple[SpmdLayout, SpmdLayout], Timed] = {}
    while len(found) < count:
        pair = layout(source), layout(source)
        if pair not in found:
            try:
                found[pair] = timed(*pair)
            except SpmdTypeError:
                continue  # R -> I, which is for experts
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="number of transitions")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    times = measure(arguments.count, arguments.seed)
    cold, cached = sorted(each.cold for each in times), [each.cached for each in times]
    most = cold[len(cold) * 99 // 100]
    print(f"cold    median {statistics.median(cold) * 1e3:.2f} ms, 99 of 100 within {most * 1e3:.2f} ms, ", end="")
    print(f"slowest {cold[-1] * 1e3:.2f} ms")
    print(f"cached  median {statistics.median(cached) * 1e6:.2f} us, slowest {max(cached) * 1e6:.2f} us")
    print(max(times, key=lambda each: each.cold).made)


if __name__ == "__main__":
    main()

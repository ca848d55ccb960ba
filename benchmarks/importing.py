"""What `import meshwright.spmd` adds to `import torch`.

    python -m benchmarks.importing [--rounds 7]

Each import is timed in a process of its own, the two in turn, after one of each that fills the caches.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

IMPORTS: Final = ("import torch", "import torch, meshwright.spmd")
PROGRAM: Final = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def seconds(imports: str) -> float:
    """How long a fresh process takes for the statement."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM.format(imports)], capture_output=True, text=True, check=True)
    return float(ended.stdout)


def medians(rounds: int) -> list[float]:
    """Median seconds of each of `IMPORTS`."""
    for each in IMPORTS:
        seconds(each)
    times = [[seconds(each) for each in IMPORTS] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both medians and their difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    found = medians(parser.parse_args(arguments).rounds)
    for statement, median in zip(IMPORTS, found, strict=True):
        print(f"{statement:<32}{median * 1e3:8.1f} ms")
    print(f"{'added':<32}{(found[1] - found[0]) * 1e3:8.1f} ms   wanted under 150 ms")


if __name__ == "__main__":
    main()

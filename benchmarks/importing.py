"""What `import meshwright.spmd` adds to `import torch`.

    python -m benchmarks.importing [--rounds 7]

Each import is timed in a process of its own, in turn, after one of each that fills the caches. On a machine that does
other things the two medians differ by more than is added; the last row times what is added alone.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

TORCH, BOTH, AFTER = "import torch", "import torch, meshwright.spmd", "import meshwright.spmd"
PROGRAM: Final = "import time; {}; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def seconds(imports: str, before: str = "pass") -> float:
    """How long a fresh process takes for a statement, after another one."""
    program = PROGRAM.format(before, imports)
    return float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


def medians(rounds: int) -> list[float]:
    """Median seconds of torch, of both, and of meshwright after torch."""
    times = [(seconds(TORCH), seconds(BOTH), seconds(AFTER, TORCH)) for _ in range(rounds + 1)]
    return [statistics.median(column) for column in zip(*times[1:], strict=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the medians and what is added."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    torch, both, after = medians(parser.parse_args(arguments).rounds)
    rows = ((TORCH, torch, ""), (BOTH, both, ""), ("added", both - torch, "   wanted under 150 ms"))
    for name, found, wanted in (*rows, (f"{AFTER}, after torch", after, "")):
        print(f"{name:<36}{found * 1e3:8.1f} ms{wanted}")


if __name__ == "__main__":
    main()

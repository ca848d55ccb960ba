"""The three backends in turn in one process: throughput of a training step, first step, peak memory.

    python -m benchmarks.backends [--compiled] [--model qwen3]

Under a fake process group of 8 (dp 2, tp 4, sequence parallel, one sequence of 64 tokens a rank) nothing is
communicated: what is timed is what the host does. Ratios are of medians, throughput of `spmd_types` over the other's.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.eager_step import LENGTH, batch_of, fake_world
from meshwright import recipes
from meshwright.models.spec import ModelSpec
from meshwright.train.assemble import assemble, connect
from meshwright.train.config import BackendName, ComputeConfig, ParallelConfig, TrainConfig, TrainingConfig
from meshwright.train.step import train_step

BACKENDS: tuple[BackendName, ...] = ("spmd_types", "full_dtensor", "partial_dtensor")
LAYOUT: Mapping[str, int] = {"dp_shard": 2, "tp": 4}
WITH_CP: Mapping[str, int] = {"dp_shard": 2, "cp": 2, "tp": 2}

Step = Callable[[], object]


def model_of(name: str) -> ModelSpec:
    """The numbers of a family's debug size."""
    return recipes.find(f"{name}_debug").model


def step_of(model: ModelSpec, backend: BackendName, layout: Mapping[str, int], *, compiled: bool = False) -> Step:
    """One optimizer step of one micro-batch of one sequence a data rank."""
    config = TrainConfig(
        model=model,
        parallel=ParallelConfig(backend=backend, **layout),
        training=TrainingConfig(length=LENGTH * layout.get("cp", 1), batch=layout["dp_shard"]),
        compute=ComputeConfig(compile=compiled),
    )
    connected = connect(config, 0, "cpu")
    run = assemble(config, *connected, torch.device("cpu"))
    batch = batch_of(1, model.vocab, LENGTH * layout.get("cp", 1))
    return lambda: train_step(run, [batch], step=1, rate=1e-6, max_norm=1.0)


def seconds(step: Step) -> float:
    """Of one call."""
    before = time.perf_counter()
    step()
    return time.perf_counter() - before


def in_turn(steps: Mapping[BackendName, Step], repeat: int) -> dict[BackendName, float]:
    """Median seconds of each, run one after the other in changing order."""
    times: dict[BackendName, list[float]] = {name: [] for name in steps}
    for i in range(repeat):
        for name in (*steps,) if i % 2 else reversed((*steps,)):
            times[name].append(seconds(steps[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def peak(step: Step) -> int:
    """Bytes that are held at most during a step above what was held before it."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    results = recorded.profiler.kineto_results  # type: ignore[union-attr]
    changes = [event.nbytes() for event in results.events() if event.name() == "[memory]"]
    return max(accumulate(changes))


def measure(model: ModelSpec, repeat: int, *, compiled: bool) -> None:
    """Print what the backends take."""
    steps = {name: step_of(model, name, LAYOUT, compiled=compiled) for name in BACKENDS}
    first = {name: seconds(step) for name, step in steps.items()}
    for step in steps.values():
        step()
    median = in_turn(steps, repeat)
    peaks = {name: peak(step) for name, step in steps.items()}
    print(f"{'':16}{'first step':>12}{'median':>12}{'throughput of spmd_types':>28}{'peak':>12}{'of spmd_types':>16}")
    for name in BACKENDS:
        ratio, share = median[name] / median["spmd_types"], peaks[name] / peaks["spmd_types"]
        print(
            f"{name:16}{first[name]:>10.2f} s{median[name] * 1e3:>9.2f} ms{f'x {ratio:.2f}':>28}"
            f"{peaks[name] / 2**20:>8.2f} MiB{share:>16.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=100, help="steps of each backend")
    parser.add_argument("--model", choices=("llama3", "qwen3"), default="llama3")
    parser.add_argument("--compiled", action="store_true", help="blocks and loss compiled")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = model_of(arguments.model)
    with fake_world():
        print(f"{arguments.model} debug, {'compiled' if arguments.compiled else 'eager'}")
        measure(model, arguments.repeat, compiled=arguments.compiled)
        if not arguments.compiled:
            taken = seconds(step_of(model, "full_dtensor", WITH_CP))
            print(f"first step of full_dtensor on dp 2 x cp 2 x tp 2: {taken:.1f} s")


if __name__ == "__main__":
    main()

"""Models with experts on the three backends in turn, and where the time of a step goes.

    python -m benchmarks.moe [--model deepseek_v3] [--repeat 60]

Under a fake process group of 8 (dp 2, tp 4, ep 4, sequence parallel, one sequence of 64 tokens a rank) nothing is
communicated: what is timed is what the host does. A fake group has no counts to exchange either, so tokens are dealt
evenly, after the same exchange of counts and the same wait of the host. Ratios are of medians, throughput of
`spmd_types` over the other's: at the shapes of `ModelSpec.small`, where the host is all that there is, and at the debug
size. Shares of a step of `spmd_types` there: products and attention; and what takes tokens to experts and back.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.backends import BACKENDS, Step, in_turn, model_of, step_of
from benchmarks.eager_step import fake_world
from meshwright.comm.transport import Transport
from meshwright.models.dispatch import AllToAll, Compute
from meshwright.models.spec import ModelSpec

MODELS = ("qwen3_moe", "deepseek_v3")
LAYOUT: Mapping[str, int] = {"dp_shard": 2, "tp": 4, "ep": 4}
_ARITHMETIC = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::_grouped_mm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
)
_DISPATCH, _COMPUTE = "dispatch", "compute"
_BACK = ("_PickedBackward", "_ExchangedBackward")
_dealt, _dispatched = Transport.deal, AllToAll.__call__


def evenly(axis: Transport, counts: Tensor, rows: int) -> tuple[list[int], list[int], Tensor]:
    """As `Transport.deal`, at its cost, with every expert chosen equally often."""
    _dealt(axis, torch.zeros_like(counts), rows)
    each = [rows // axis.size] * axis.size
    own = counts.shape[0] // axis.size
    return each, each, counts.new_full((axis.size, own), rows // axis.size // own)


@contextmanager
def dealt_evenly() -> Iterator[None]:
    """Inside, no counts are needed from other ranks."""
    with patch.object(Transport, "deal", evenly):
        yield


def marked(self: AllToAll, x: Tensor, chosen: Tensor, compute: Compute) -> Tensor:
    """As `AllToAll`, seen by a profiler."""

    def inside(rows: Tensor, offsets: Tensor) -> Tensor:
        with record_function(_COMPUTE):
            return compute(rows, offsets)

    with record_function(_DISPATCH):
        return _dispatched(self, x, chosen, inside)


def shares(step: Step) -> tuple[float, float]:
    """Of the time of a step: of arithmetic, and of dispatch and combine, forward and backward."""
    recorder = profile(activities=[ProfilerActivity.CPU])
    with patch.object(AllToAll, "__call__", marked), recorder as recorded, record_function("step"):
        step()
    found = {event.key: event for event in recorded.key_averages()}
    whole = found["step"].cpu_time_total
    arithmetic = sum(found[name].self_cpu_time_total for name in _ARITHMETIC if name in found)
    there = found[_DISPATCH].cpu_time_total - found[_COMPUTE].cpu_time_total
    back = sum(found[name].cpu_time_total for name in _BACK if name in found)
    return arithmetic / whole, (there + back) / whole


def measure(name: str, model: ModelSpec, repeat: int) -> None:
    """Print what the backends take."""
    steps = {backend: step_of(model, backend, LAYOUT) for backend in BACKENDS}
    for _ in range(2):
        for step in steps.values():
            step()
    median = in_turn(steps, repeat)
    arithmetic, dispatch = shares(steps["spmd_types"])
    print(f"{name}: {arithmetic:.0%} of a step is arithmetic, {dispatch:.0%} dispatch and combine")
    for backend in BACKENDS:
        print(f"  {backend:16}{median[backend] * 1e3:>9.2f} ms   x {median[backend] / median['spmd_types']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=60, help="steps of each backend")
    parser.add_argument(
        "--model", choices=("qwen3_moe", "deepseek_v3"), nargs="*", default=["qwen3_moe", "deepseek_v3"]
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with fake_world(), dealt_evenly():
        for name in arguments.model:
            model = model_of(name)
            measure(f"{name} small", model.small(model.layers), arguments.repeat)
            measure(f"{name} debug", model, arguments.repeat)


if __name__ == "__main__":
    main()

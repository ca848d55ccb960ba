"""The eager training step against the same step written by hand: op lists, and the ratio of median times.

    python -m benchmarks.eager_step

Under a fake process group of 8 (dp 2, tp 4, sequence parallel, sequence 64) nothing is communicated: what is timed is
what the host does. Both steps are run in turn in one process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import _clear_fast_path_sharding_prop_cache, _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.handwritten import HandwrittenLlama, HandwrittenStep, Shape
from meshwright.models.llama3 import llama3
from meshwright.train.assemble import Assembly, assemble, connect
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig
from meshwright.train.data import Batch
from meshwright.train.step import train_step

WORLD, DP, TP, LENGTH = 8, 2, 4, 64


@contextmanager
def fake_world() -> Iterator[None]:
    """This process as rank 0 of 8 that do not exist."""
    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
        # what DTensor remembers of a mesh it takes for that of an equal one, whose groups have other names
        _clear_sharding_prop_cache()
        _clear_fast_path_sharding_prop_cache()


def batch_of(rows: int, vocab: int, length: int = LENGTH) -> Batch:
    """One micro-batch of this rank, [rows, length]."""
    tokens = torch.randint(vocab, (rows, length), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(length).expand(rows, length).contiguous()
    return Batch(tokens, tokens.roll(-1, 1), positions, torch.zeros_like(tokens))


def declared(rows: int) -> Assembly:
    """The debug Llama as meshwright runs it."""
    config = TrainConfig(
        model=llama3("debug"),
        parallel=ParallelConfig(dp_shard=DP, tp=TP),
        training=TrainingConfig(length=LENGTH, batch=rows * DP),
    )
    backend, everyone = connect(config, 0, "cpu")
    return assemble(config, backend, everyone, torch.device("cpu"))


def handwritten(run: Assembly) -> HandwrittenStep:
    """The same model by hand, sharded by FSDP over the same data-parallel ranks, with the same values."""
    numbers = llama3("debug")
    mesh = dist.device_mesh.init_device_mesh("cpu", (DP, TP), mesh_dim_names=("dp", "tp"))
    fields = ("dim", "layers", "heads", "kv_heads", "hidden", "vocab", "theta", "epsilon")
    model = HandwrittenLlama(Shape(**{name: getattr(numbers, name) for name in fields}, group=mesh["tp"].get_group()))
    ends: list[nn.Module] = [model.norm, model.head]
    fully_shard(model.embedding, mesh=mesh["dp"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(ends, mesh=mesh["dp"], reshard_after_forward=False)
    fully_shard(model, mesh=mesh["dp"])
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    theirs = dict(run.model.named_parameters())
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.to_local().copy_(run.backend.storage.local(theirs[name]))
    return HandwrittenStep(model, mesh["dp"].get_group(), decay=0.1)


def steps(rows: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """One optimizer step of one micro-batch: (declared, by hand), from the same values."""
    run = declared(rows)
    step = handwritten(run)
    batch = batch_of(rows, llama3("debug").vocab)

    def ours() -> object:
        return train_step(run, [batch], step=1, rate=1e-6, max_norm=1.0)

    def theirs() -> object:
        return step(batch.tokens, batch.labels, batch.positions, batch.documents, 1e-6, 1.0)

    return ours, theirs


class OpList(TorchDispatchMode):
    """The ops that reach the device, in order, with the shapes they give."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        shape = list(out.shape) if isinstance(out, Tensor) else ""
        self.ops.append(f"{func} {shape}")
        return out


def op_list(step: Callable[[], object]) -> list[str]:
    """The ops of one step, after a first one that set everything up."""
    step()
    with OpList() as recorded:
        step()
    return recorded.ops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=600, help="steps of each kind")
    parser.add_argument("--rows", type=int, default=1, help="sequences of a rank")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with fake_world():
        pair = steps(arguments.rows)
        lists = [op_list(step) for step in pair]
        times: tuple[list[float], list[float]] = ([], [])
        for i in range(arguments.repeat):
            for which in (0, 1) if i % 2 else (1, 0):
                before = time.perf_counter()
                pair[which]()
                times[which].append(time.perf_counter() - before)
    ours, theirs = (statistics.median(each) for each in times)
    print(f"ops       declared {len(lists[0])}, by hand {len(lists[1])}, equal: {lists[0] == lists[1]}")
    print(f"median    declared {ours * 1e3:.2f} ms, by hand {theirs * 1e3:.2f} ms")
    print(f"ratio     {ours / theirs:.3f}")


if __name__ == "__main__":
    main()

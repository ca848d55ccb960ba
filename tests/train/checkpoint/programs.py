"""What real ranks do in the tests of checkpoints; each returns plain values."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import MeshwrightError
from meshwright.train.assemble import Assembly, assemble, connect, run_dims
from meshwright.train.checkpoint.keeper import Keeper
from meshwright.train.checkpoint.load import load
from meshwright.train.checkpoint.marker import Marker, Progress
from meshwright.train.checkpoint.save import save
from meshwright.train.checkpoint.together import world
from meshwright.train.config import TrainConfig
from meshwright.train.data import Batch, Corpus, open_corpus
from meshwright.train.data.store import Split
from meshwright.train.show.record import StepRecord
from meshwright.train.step import train_step, validate
from meshwright.train.trainer import Trainer, split_rows
from tests.parity.harness import MAX_NORM, RATE, alone_on_cpu, rows

CPU = torch.device("cpu")
Piece = tuple[tuple[slice, ...], tuple[int, ...], Tensor]
"""Where a rank's part lies in the full tensor, the shape of that, and the part."""
Held = dict[str, Piece]


def assembled(rank: int, config: TrainConfig) -> Assembly:
    """This process's run; the only one where there is no process group."""
    if not dist.is_initialized():
        return alone_on_cpu(config)
    backend, everyone = connect(config, rank, "cpu")
    return assemble(config, backend, everyone, CPU)


def share(run: Assembly, batch: Batch) -> Batch:
    dp = run.backend.view["dp"]
    return rows(batch, dp.index, dp.size)


def marker_at(step: int, config: TrainConfig) -> Marker:
    return Marker(progress=Progress(step=step), stream={}, recipe={}, ranks=str(run_dims(config)), world=world())


def held(run: Assembly) -> Held:
    """This rank's part of every weight and of the optimizer's state, by the layout that the run says it has."""
    storage = run.backend.storage
    run.model.state_dict()  # FSDP puts back to rest what a validation has left gathered
    found: Held = {}
    for name, param in run.model.named_parameters():
        info = run.states[name]
        spans = [info.stored.span(dim, n, storage.degree, storage.index) for dim, n in enumerate(info.shape)]
        place = tuple(slice(span.start, span.stop) for span in spans)
        found[name] = place, info.shape, storage.local(param).clone()
        for key, value in run.optimizer.state.get(param, {}).items():
            is_count = value.dim() == 0
            found[f"{name}.{key}"] = (
                () if is_count else place,
                () if is_count else info.shape,
                storage.local(value).clone(),
            )
    kept = run.model.state_dict().keys()
    for name, buffer in run.model.named_buffers():
        if name in kept:
            found[name] = (), tuple(buffer.shape), buffer.clone()
    return found


def whole(parts: Sequence[Held]) -> dict[str, Tensor]:
    """The full tensors; ranks that hold the same elements must hold the same bits, and some rank holds each."""
    full: dict[str, Tensor] = {}
    for part in parts:
        for name, (place, shape, local) in part.items():
            tensor = full.setdefault(name, torch.full(shape, torch.nan, dtype=local.dtype))
            known = ~tensor[place].isnan()
            assert torch.equal(tensor[place][known], local[known]), f"{name}: replicas differ"
            tensor[place] = local
    assert not any(tensor.isnan().any() for tensor in full.values())
    return full


def save_after(rank: int, cases: Sequence[tuple[TrainConfig, str]], batches: Sequence[Batch]) -> list[Held]:
    """Of each config: train on `batches`, then save; what is held then."""
    found = []
    for config, folder in cases:
        run = assembled(rank, config)
        for step, batch in enumerate(batches, 1):
            micro = split_rows(share(run, batch), config.parallel.filling)
            train_step(run, micro, step=step, rate=RATE, max_norm=MAX_NORM)
        validate(run, [share(run, batches[0])])  # FSDP leaves a block gathered
        save(run, Path(folder), marker_at(len(batches), config), keep=1)
        found.append(held(run))
    return found


def load_each(rank: int, cases: Sequence[tuple[TrainConfig, str]]) -> list[Held]:
    """Of each config, whose first weights are other ones: load; what is held then."""
    found = []
    for config, checkpoint in cases:
        run = assembled(rank, replace(config, training=replace(config.training, seed=99)))
        load(run, Path(checkpoint))
        found.append(held(run))
    return found


def step_from(rank: int, config: TrainConfig, checkpoint: str, batch: Batch) -> tuple[float, float, Held]:
    """Load and make one step: its loss and norm, and what is held then."""
    run = assembled(rank, config)
    load(run, Path(checkpoint))
    measured = train_step(run, [share(run, batch)], step=3, rate=RATE, max_norm=MAX_NORM)
    return measured.loss, measured.grad_norm, held(run)


def load_error(rank: int, config: TrainConfig, checkpoint: str) -> tuple[str, str, bool]:
    """The kind and the words of what loading meets, and whether every weight is what it was."""
    run = assembled(rank, config)
    before = [run.backend.storage.local(param).clone() for param in run.model.parameters()]
    kind, said = "", ""
    try:
        load(run, Path(checkpoint))
    except MeshwrightError as error:
        kind, said = type(error).__name__, str(error)
    after = [run.backend.storage.local(param) for param in run.model.parameters()]
    return kind, said, all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@dataclass(frozen=True)
class Failed:
    """A save that failed between two that did not."""

    kind: str
    said: str
    left: list[str]
    unchanged: bool
    losses: list[float]


def save_without_room(rank: int, config: TrainConfig, folder: str, batches: Sequence[Batch], full: int) -> Failed:
    """Save after each of `batches`; after the second one, rank `full` may write no file of more than a few bytes."""
    run = assembled(rank, config)
    losses, kind, said, unchanged, left = [], "", "", False, []
    for step, batch in enumerate(batches, 1):
        losses.append(train_step(run, [share(run, batch)], step=step, rate=RATE, max_norm=MAX_NORM).loss)
        if step != 2:
            save(run, Path(folder), marker_at(step, config), keep=2)
            continue
        before = held(run)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if rank == full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
        try:
            save(run, Path(folder), marker_at(step, config), keep=2)
        except MeshwrightError as error:
            kind, said = type(error).__name__, str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        dist.barrier()
        left = sorted(path.name for path in Path(folder).iterdir())
        unchanged = all(torch.equal(before[name][2], value) for name, (_, _, value) in held(run).items())
    return Failed(kind, said, left, unchanged, losses)


@dataclass(frozen=True, kw_only=True)
class Numbered(Corpus):
    """Rows of `length` tokens that count on: the first of a row says which one it is."""

    rows: int
    length: int

    def _split(self, name: str) -> Split:
        tokens = self.rows * self.length if name == "train" else 0
        return Split(np.arange(tokens, dtype=np.uint32), np.array([0, tokens] if tokens else [0], dtype=np.int64))


def numbered(count: int, length: int) -> Numbered:
    return Numbered(
        folder="",
        digest=f"{count} x {length}",
        vocab_size=count * length + 1,
        eos_id=count * length,
        train_tokens=count * length,
        train_documents=1,
        validation_tokens=0,
        validation_documents=0,
        rows=count,
        length=length,
    )


def trained(
    rank: int, config: TrainConfig, corpus: Corpus | str, folder: str, checkpoint: str | None = None, stop: int = 0
) -> tuple[list[StepRecord], list[list[int]], Held]:
    """A run to its end, or until it is stopped after step `stop`: its records, the first token of each row that each
    step took, and what is held then."""
    run = assembled(rank, config)
    opened = open_corpus(corpus) if isinstance(corpus, str) else corpus
    trainer = Trainer(config, run, opened, run.gradients.world, Keeper.of(config, Path(folder)))
    if checkpoint is not None:
        trainer.resume(Path(checkpoint))
    taken: list[list[int]] = []
    trainer.stream = _Watched(trainer.stream, taken)  # type: ignore[assignment]
    records: list[StepRecord] = []

    def report(record: StepRecord) -> None:
        records.append(record)

    def note(text: str) -> None:
        if stop and records[-1].step >= stop:
            raise Stopped

    with suppress(Stopped):
        trainer.train(report, note)
    return records, taken, held(run)


class Stopped(Exception):
    """The run is ended from outside, right after a checkpoint."""


class _Watched:
    """A stream that says what is taken from it."""

    def __init__(self, stream: object, taken: list[list[int]]) -> None:
        self.stream, self.taken = stream, taken

    def __next__(self) -> Batch:
        batch: Batch = next(self.stream)  # type: ignore[call-overload]
        self.taken.append(batch.tokens[:, 0].tolist())
        return batch

    def state_dict(self) -> Mapping[str, object]:
        return self.stream.state_dict()  # type: ignore[attr-defined]

"""The training of one rank, from its place on the mesh to the last step."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist

from meshwright import terminal
from meshwright.comm.transport import Transport
from meshwright.train.assemble import Assembly, assemble, connect
from meshwright.train.checkpoint.keeper import NONE, Keeper
from meshwright.train.checkpoint.load import load
from meshwright.train.checkpoint.marker import Progress
from meshwright.train.checkpoint.recipe import demand_same_data, demand_same_run
from meshwright.train.checkpoint.resume import VARIABLE, Resumed, find, inherited, open_run
from meshwright.train.checkpoint.together import on_the_first
from meshwright.train.compute import demand_device
from meshwright.train.config import TrainConfig
from meshwright.train.data import Batch, Corpus, open_corpus, prepare
from meshwright.train.launch import device as devices
from meshwright.train.launch.environment import CORPUS, Rank
from meshwright.train.optimizer import rate_at
from meshwright.train.preflight import check_vocabulary, preflight
from meshwright.train.show.describe import describe
from meshwright.train.show.metrics import open_metrics
from meshwright.train.show.record import ExpertLoad, StepRecord, Summary
from meshwright.train.show.run_folder import RunFolder
from meshwright.train.show.screen import BUSIEST, COLUMNS, Screen
from meshwright.train.step import Measured, train_step, validate


def run(config: TrainConfig, recipe: str) -> None:
    """Train `config` as the rank that the environment names. recipe: what the run is called.

    Errors: any `MeshwrightError`; nothing of a step that fails is kept.
    """
    rank = Rank.of_environment()
    preflight(config, rank.world, "the number of processes")
    chosen = devices.choose(config.launch.device, rank.local_world)
    demand_device(config.compute, chosen.type)
    device = devices.start(chosen, rank.local_index, threads=config.launch.threads)
    try:
        backend, everyone = connect(config, rank.index, device.type)
        corpus = _corpus(config, rank)
        assembled = assemble(config, backend, everyone, device)
        resumed = _resumed(config, recipe, corpus)
        trainer = Trainer(config, assembled, corpus, everyone)
        if resumed is not None:
            trainer.resume(resumed.checkpoint)
        folder = RunFolder.inherited() or on_the_first(lambda: open_run(config, recipe, resumed))
        trainer.keeper = Keeper.of(config, folder.path)
        if rank.index == 0:
            _shown(config, folder, trainer, resumed)
        else:
            trainer.train(lambda record: None)
    finally:
        devices.stop()


def _shown(config: TrainConfig, folder: RunFolder, trainer: Trainer, resumed: Resumed | None) -> None:
    """The rank that has the terminal and writes the run folder."""
    records = folder.rewind(trainer.done.step)
    folder.write_config(config)
    screen = Screen(
        terminal.out(), config.training.steps, (*COLUMNS, BUSIEST) if trainer.run.balance.layers else COLUMNS
    )
    about = trainer.keeper.describe(resumed.marker.course if resumed is not None else None)
    if resumed is not None:
        about |= resumed.describe(config.training.steps)
    screen.header(describe(config, trainer.run, trainer.corpus, folder) | about)
    with open_metrics(folder, tensorboard=config.output.tensorboard, earlier=records) as metrics, screen:

        def show(record: StepRecord) -> None:
            records.append(record)
            metrics.write(record)
            screen.update(record)

        trainer.train(show, screen.note)
    screen.end(Summary.of(records), folder)


def _corpus(config: TrainConfig, rank: Rank) -> Corpus:
    """What the launcher prepared; under a bare torchrun one rank of each machine prepares it first."""
    folder = os.environ.get(CORPUS)
    if folder is not None:
        return open_corpus(folder)
    for first in (True, False):
        if (rank.local_index == 0) is first:
            corpus = prepare(config.data, length=config.training.length)
        dist.barrier()
    check_vocabulary(config, corpus.vocab_size)
    return corpus


def _resumed(config: TrainConfig, recipe: str, corpus: Corpus) -> Resumed | None:
    """What the launcher found to go on from; under a bare torchrun the first rank looks for it, and all hold it against
    what they are told."""
    if VARIABLE in os.environ:
        return inherited()
    resumed = on_the_first(lambda: find(config, recipe))
    if resumed is not None:
        demand_same_run(config, resumed.marker)
        demand_same_data(config, resumed.marker, corpus)
    return resumed


class Trainer:
    """The steps of one rank.

    keeper: of its checkpoints; done: how far it is.
    """

    def __init__(
        self, config: TrainConfig, run: Assembly, corpus: Corpus, everyone: Transport, keeper: Keeper = NONE
    ) -> None:
        self.config, self.run, self.corpus, self.everyone = config, run, corpus, everyone
        self.keeper = keeper
        self.done = Progress()
        data_axis = run.backend.view["dp"]
        self.share = {"length": config.training.length, "rank": data_axis.index, "ranks": data_axis.size}
        self.stream = corpus.train(global_batch=config.training.batch, seed=config.data.seed, **self.share)

    def resume(self, checkpoint: Path) -> None:
        """Go on from a checkpoint; on all ranks. Errors: those of `load`."""
        marker = load(self.run, checkpoint)
        self.stream.load_state_dict(marker.stream)
        self.done = marker.progress

    def train(self, report: Callable[[StepRecord], None], note: Callable[[str], None] = lambda text: None) -> None:
        """All steps that are left; `report` is told of each, `note` of each checkpoint."""
        training, optimizer = self.config.training, self.config.optimizer
        before = time.perf_counter()
        began = before - self.done.seconds
        for step in range(self.done.step + 1, training.steps + 1):
            rate = rate_at(step, training.steps, optimizer)
            micro = split_rows(next(self.stream), training.accumulate * self.config.parallel.filling)
            measured = train_step(self.run, micro, step=step, rate=rate, max_norm=training.max_norm)
            now = time.perf_counter()
            tokens = self.done.tokens + training.batch * training.length
            self.done = Progress(step=step, tokens=tokens, seconds=now - began)
            record = StepRecord(
                step=step,
                loss=measured.loss,
                grad_norm=measured.grad_norm,
                rate=rate,
                tokens_per_second=training.batch * training.length / (now - before),
                memory_gib=self._memory(),
                validation_loss=self._validation(step),
                seconds=self.done.seconds,
                tokens=tokens,
                experts=self._experts(measured),
            )
            before = time.perf_counter()
            report(record)
            if self.keeper.is_due(step):
                note(self.keeper.save(self.config, self.run, self.stream, self.done))
                before = time.perf_counter()

    def _validation(self, step: int) -> float | None:
        training = self.config.training
        due = step % training.validate_every == 0 or step in (1, training.steps)
        if not due or training.validation_batches == 0 or self.corpus.validation_tokens == 0:
            return None
        batches = self.corpus.validation(global_batch=training.batch // training.accumulate, **self.share)
        return validate(self.run, islice(batches, training.validation_batches))

    def _experts(self, measured: Measured) -> ExpertLoad | None:
        training = self.config.training
        if measured.tokens is None:
            return None
        return ExpertLoad.of(measured.tokens, training.batch * training.length * self.run.balance.active)

    def _memory(self) -> float:
        """GiB, the most that any rank has held."""
        if self.run.device.type == "cuda":
            held = torch.cuda.max_memory_allocated(self.run.device) / 2**30
        else:
            held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return self.everyone.all_reduce(torch.tensor(held, device=self.run.device), "max").item()


def split_rows(batch: Batch, parts: int) -> list[Batch]:
    """Micro-batches of equally many rows."""
    fields = (part.chunk(parts) for part in batch.fields)
    return [Batch(*rows) for rows in zip(*fields, strict=True)]

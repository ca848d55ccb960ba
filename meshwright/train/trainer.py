"""The training of one rank, from its place on the mesh to the last step."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from itertools import islice

import torch
import torch.distributed as dist

from meshwright import terminal
from meshwright.comm.transport import Transport
from meshwright.train.assemble import Assembly, assemble, processes_backend, run_dims
from meshwright.train.config import TrainConfig
from meshwright.train.data import Batch, Corpus, open_corpus, prepare
from meshwright.train.launch import device as devices
from meshwright.train.launch.environment import CORPUS, Rank
from meshwright.train.optimizer import rate_at
from meshwright.train.preflight import check_vocabulary, preflight
from meshwright.train.show.describe import describe
from meshwright.train.show.metrics import open_metrics
from meshwright.train.show.record import StepRecord, Summary
from meshwright.train.show.run_folder import RunFolder
from meshwright.train.show.screen import Screen
from meshwright.train.step import train_step, validate


def run(config: TrainConfig, recipe: str) -> None:
    """Train `config` as the rank that the environment names. recipe: what the run is called.

    Errors: any `MeshwrightError`; nothing of a step that fails is kept.
    """
    rank = Rank.of_environment()
    preflight(config, rank.world, "the number of processes")
    chosen = devices.choose(config.launch.device, rank.local_world)
    device = devices.start(chosen, rank.local_index, threads=config.launch.threads)
    try:
        backend, everyone = processes_backend(run_dims(config), rank.index, device.type)
        corpus = _corpus(config, rank)
        assembled = assemble(config, backend, everyone, device)
        trainer = Trainer(config, assembled, corpus, everyone)
        if rank.index == 0:
            _shown(config, recipe, trainer)
        else:
            trainer.train(lambda record: None)
    finally:
        devices.stop()


def _shown(config: TrainConfig, recipe: str, trainer: Trainer) -> None:
    """The rank that has the terminal and writes the run folder."""
    folder = RunFolder.inherited() or RunFolder.create(config.output.folder, recipe)
    folder.write_config(config)
    screen = Screen(terminal.out(), config.training.steps)
    screen.header(describe(config, trainer.run, trainer.corpus, folder))
    records: list[StepRecord] = []
    with open_metrics(folder, tensorboard=config.output.tensorboard) as metrics, screen:

        def show(record: StepRecord) -> None:
            records.append(record)
            metrics.write(record)
            screen.update(record)

        trainer.train(show)
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


class Trainer:
    """The steps of one rank."""

    def __init__(self, config: TrainConfig, run: Assembly, corpus: Corpus, everyone: Transport) -> None:
        self.config, self.run, self.corpus, self.everyone = config, run, corpus, everyone
        data_axis = run.backend.view["dp"]
        self.share = {"length": config.training.length, "rank": data_axis.index, "ranks": data_axis.size}
        self.stream = corpus.train(global_batch=config.training.batch, seed=config.data.seed, **self.share)

    def train(self, report: Callable[[StepRecord], None]) -> None:
        """All steps; `report` is told of each."""
        training, optimizer = self.config.training, self.config.optimizer
        began = before = time.perf_counter()
        tokens = 0
        for step in range(1, training.steps + 1):
            rate = rate_at(step, training.steps, optimizer)
            micro = split_rows(next(self.stream), training.accumulate)
            measured = train_step(self.run, micro, step=step, rate=rate, max_norm=training.max_norm)
            now = time.perf_counter()
            tokens += training.batch * training.length
            record = StepRecord(
                step=step,
                loss=measured.loss,
                grad_norm=measured.grad_norm,
                rate=rate,
                tokens_per_second=training.batch * training.length / (now - before),
                memory_gib=self._memory(),
                validation_loss=self._validation(step),
                seconds=now - began,
                tokens=tokens,
            )
            before = time.perf_counter()
            report(record)

    def _validation(self, step: int) -> float | None:
        training = self.config.training
        due = step % training.validate_every == 0 or step in (1, training.steps)
        if not due or training.validation_batches == 0 or self.corpus.validation_tokens == 0:
            return None
        batches = self.corpus.validation(global_batch=training.batch // training.accumulate, **self.share)
        return validate(self.run, islice(batches, training.validation_batches))

    def _memory(self) -> float:
        """GiB, the most that any rank has held."""
        if self.run.device.type == "cuda":
            held = torch.cuda.max_memory_allocated(self.run.device) / 2**30
        else:
            held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return self.everyone.all_reduce(torch.tensor(held, device=self.run.device), "max").item()


def split_rows(batch: Batch, parts: int) -> list[Batch]:
    """Micro-batches of equally many rows."""
    fields = (part.chunk(parts) for part in (batch.tokens, batch.labels, batch.positions, batch.documents))
    return [Batch(*rows) for rows in zip(*fields, strict=True)]

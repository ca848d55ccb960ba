"""The order of the rows: an endless stream for training and one pass for validation, both over any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import ConfigError, Problem
from meshwright.train.data.packing import Batch, count_rows, pack
from meshwright.train.data.store import Split

FIELDS = {"corpus": "data.path", "seed": "data.seed", "length": "length", "global_batch": "global_batch"}


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of every global batch that is one rank's: a contiguous slice of global_batch / ranks rows.

    Errors: `ConfigError` if the batch does not divide or there is no such rank.
    """

    global_batch: int
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.ranks < 1 or not 0 <= self.rank < self.ranks:
            raise ConfigError(Problem(where="rank", what=f"there is no rank {self.rank} of {self.ranks}"))
        if self.global_batch < 1 or self.global_batch % self.ranks:
            lower = self.global_batch // self.ranks * self.ranks
            near = [str(size) for size in (lower, lower + self.ranks) if size > 0]
            raise ConfigError(
                Problem(
                    where="global_batch",
                    what=f"{self.global_batch} rows cannot be shared by {self.ranks} ranks",
                    why="every rank takes the same number of rows, at least one",
                    fix=f"a global_batch of {' or '.join(near)}",
                )
            )

    def rows(self, step: int) -> NDArray[np.int64]:
        """This rank's places in the row of all global batches, at `step`."""
        each = self.global_batch // self.ranks
        return step * self.global_batch + self.rank * each + np.arange(each)


@lru_cache(maxsize=4)
def epoch_order(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of `rows` that depends on (seed, epoch) alone.

    It is the order of the raw numbers of a bit generator: numpy promises them for all its versions, and does not
    promise `Generator.permutation`, so a run resumes the same under another numpy.
    """
    order = np.argsort(np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(rows), kind="stable")
    order.setflags(write=False)
    return order


class BatchStream(Iterator[Batch]):
    """One rank's batches, endless: the epochs one after the other, each in an order of its own.

    Step s takes rows [s * global_batch, (s + 1) * global_batch) of that endless row of epochs, whatever the number of
    ranks. `step` counts the batches that were taken.
    """

    def __init__(self, split: Split, *, corpus: str, padding: int, length: int, share: Share, seed: int) -> None:
        self.step = 0
        self._split, self._padding, self._length, self._share, self._seed = split, padding, length, share, seed
        self._identity = {"corpus": corpus, "seed": seed, "length": length, "global_batch": share.global_batch}

    def __next__(self) -> Batch:
        rows = self._epochs(self._share.rows(self.step))
        self.step += 1
        return pack(self._split, rows, length=self._length, padding=self._padding)

    def state_dict(self) -> dict[str, Any]:
        """The step, and what identifies the order; the same on every rank and for every number of ranks."""
        return {"step": self.step, **self._identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the stream that gave `state` stood.

        Errors: `ConfigError` if that stream had another order: corpus, seed, length or global batch.
        """
        problems = [
            Problem(
                where=FIELDS[key],
                what=f"the saved stream has {key} {state.get(key)!r}, this one {value!r}",
                why="the samples would come in another order, some of them twice and some never",
                fix=f"resume with the {key} of the saved run, or begin a new run",
            )
            for key, value in self._identity.items()
            if state.get(key) != value
        ]
        if problems:
            raise ConfigError(problems)
        self.step = int(state["step"])

    def _epochs(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        epochs, within = np.divmod(places, count_rows(self._split, self._length))
        rows = np.empty_like(places)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = epoch_order(count_rows(self._split, self._length), self._seed, int(epoch))[within[here]]
        return rows


class OrderedPass:
    """One rank's batches of a single pass in order, the same number of them on every rank.

    Every row of the split is in one batch of one rank; the rest of the last global batch is padding. It can be
    iterated again.
    """

    def __init__(self, split: Split, *, padding: int, length: int, share: Share) -> None:
        self._split, self._padding, self._length, self._share = split, padding, length, share

    def __len__(self) -> int:
        return -(-count_rows(self._split, self._length) // self._share.global_batch)

    def __iter__(self) -> Iterator[Batch]:
        for step in range(len(self)):
            yield pack(self._split, self._share.rows(step), length=self._length, padding=self._padding)

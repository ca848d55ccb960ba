"""A run takes over a checkpoint, whatever layout it was saved from."""

from __future__ import annotations

from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata

from meshwright.errors import ConfigError
from meshwright.train.assemble import Assembly
from meshwright.train.checkpoint.folder import digests
from meshwright.train.checkpoint.marker import Marker, damaged, read_marker
from meshwright.train.checkpoint.names import differences, kept_in, kinds_of
from meshwright.train.checkpoint.state import prime, random_state, set_random_state, tensors_of
from meshwright.train.checkpoint.together import agreed, gather, this_rank, world


def load(run: Assembly, checkpoint: Path) -> Marker:
    """Put the weights, the optimizer's state and, on as many ranks as saved it, the random state of `checkpoint` into
    `run`; its marker. On all ranks.

    Errors: `ConfigError` on all ranks alike, with every weight as it was, where the checkpoint is damaged or is not one
    of this model.
    """
    marker = agreed(lambda: read_marker(checkpoint))
    agreed(lambda: _verify(checkpoint, marker))
    metadata = agreed(lambda: _metadata(checkpoint))
    prime(run.optimizer)
    tensors = agreed(lambda: tensors_of(run))
    problems = differences(gather(kinds_of(tensors)), kept_in(metadata), str(checkpoint))
    if problems:
        raise ConfigError(problems)
    same_ranks = world() == marker.world
    random = {name: state for name, state in random_state(run.device).items() if same_ranks}
    random = {name: state for name, state in random.items() if name in metadata.state_dict_metadata}
    try:
        dcp.load(tensors | random, storage_reader=dcp.FileSystemReader(checkpoint))
    except CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        raise damaged(checkpoint, f"it cannot be read: {type(cause).__name__}: {cause}") from error
    set_random_state(random, run.device)
    return marker


def _verify(checkpoint: Path, marker: Marker) -> None:
    """Hold this rank's share of the files against their digests."""
    names = sorted(marker.files)[this_rank() :: world()]
    for name, found in digests(checkpoint / name for name in names).items():
        if found != marker.files[name]:
            raise damaged(checkpoint, f"{name} is not what was written")


def _metadata(checkpoint: Path) -> Metadata:
    try:
        return dcp.FileSystemReader(checkpoint).read_metadata()
    except Exception as error:  # whatever a pickle that is none may raise
        raise damaged(checkpoint, f".metadata cannot be understood: {type(error).__name__}: {error}") from error

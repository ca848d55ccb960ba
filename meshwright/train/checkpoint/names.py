"""What a checkpoint has, held against what a run wants: by name, shape and type of number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from meshwright.errors import Problem
from meshwright.train.checkpoint.state import RANDOM

Kinds = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Name -> global shape and type of number."""

_MOST = 20  # problems that are told one by one


def kinds_of(tensors: Mapping[str, Tensor]) -> Kinds:
    """Of a run's tensors; a DTensor's shape is the global one."""
    return {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}


def kept_in(metadata: Metadata) -> Kinds:
    """Of a checkpoint's tensors, the random state of its ranks left out."""
    return {
        name: (tuple(kept.size), kept.properties.dtype)
        for name, kept in metadata.state_dict_metadata.items()
        if isinstance(kept, TensorStorageMetadata) and not name.startswith(RANDOM)
    }


def differences(wanted: Iterable[Kinds], kept: Kinds, where: str) -> list[Problem]:
    """What keeps a checkpoint from being this run's. wanted: by each rank; where: the checkpoint."""
    all_wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for each in wanted:
        all_wanted.update(each)
    missing = [f"{name}: missing" for name in all_wanted if name not in kept]
    unexpected = [f"{name}: unexpected" for name in kept if name not in all_wanted]
    other = [
        f"{name}: {_said(kept[name])}, not {_said(kind)}"
        for name, kind in all_wanted.items()
        if name in kept and kept[name] != kind
    ]
    found = missing + unexpected + other
    if not found:
        return []
    shown = [*found[:_MOST], *([f"and {len(found) - _MOST} more"] if len(found) > _MOST else [])]
    counts = f"{len(missing)} missing, {len(unexpected)} unexpected, {len(other)} of another shape or type"
    return [
        Problem(
            where=where,
            what="\n  ".join([f"not a checkpoint of this model: {counts}", *shown]),
            why="every tensor of the run is loaded, and every tensor of the checkpoint is used",
            fix="the recipe that saved it, or another checkpoint for --resume",
        )
    ]


def _said(kind: tuple[tuple[int, ...], torch.dtype]) -> str:
    shape, dtype = kind
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"

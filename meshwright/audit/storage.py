"""What storage, the sums of gradients and the numbers that are shown send in one step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import nn

from meshwright.audit.condense import Condensed
from meshwright.audit.meter import sent
from meshwright.audit.report import Traffic
from meshwright.audit.whole import Seen
from meshwright.backends.fsdp import Fsdp
from meshwright.backends.parallelize import StateInfo, States
from meshwright.backends.storage import Family, Replicated, StoragePolicy, contributes, family
from meshwright.comm.grid import DENSE, ParallelismDims
from meshwright.comm.scope import View
from meshwright.errors import Problem
from meshwright.models.decoder import Decoder
from meshwright.models.load import Load
from meshwright.train.loss import LOSS
from meshwright.types.axes import DP_REPLICATE, DP_SHARD, EFSDP, PP
from meshwright.types.kinds import R
from meshwright.types.layout import SpmdLayout

_FLOAT, _DOUBLE, _LONG = 4, 8, 8


class AsStored(Replicated):
    """Parameters as compute sees them; refused is what the storage of the run refuses."""

    def problems(self, name: str, layout: SpmdLayout) -> list[Problem]:
        ranks = self.dims.dp_replicate * self.dims.dp_shard
        return contributes(Fsdp.owned, name, layout) if ranks > 1 else []


class Stored:
    """The parameters of one rank, as compute sees them."""

    def __init__(self, condensed: Condensed, states: States, dims: ParallelismDims) -> None:
        self.condensed, self.states, self.dims = condensed, states, dims
        self.model: Decoder = condensed.model
        self.params = dict(self.model.named_parameters())

    def kept(self, name: str) -> int:
        """Bytes of the parameter at rest, with what fills it up to equal parts."""
        param = self.params[name]
        own = self.family(name)
        rows = param.shape[own.cut(param.shape, self.dims.base)] if param.dim() else 1
        each = param.numel() // max(rows, 1)
        return -(-rows // own.ranks(self.dims.base)) * each * param.element_size()

    def family(self, name: str) -> Family:
        """The ranks over which the parameter is stored."""
        return family(self.states[name].layout, self.dims)

    def bytes_of(self, names: Sequence[str], dtype: torch.dtype | None) -> int:
        """Bytes of parameters at rest, as numbers of `dtype`."""
        kept = ((self.kept(name), self.params[name].element_size()) for name in names)
        return sum(size // each * (dtype.itemsize if dtype else each) for size, each in kept)

    def groups(self, policy: StoragePolicy) -> Iterator[tuple[str, list[str], bool]]:
        """Module, its parameters, and whether they are freed after forward: what is gathered as one. Experts are
        gathered by themselves."""
        for path, names, freed in self._blocks(policy):
            apart: dict[tuple[str, Family], list[str]] = {}
            for name in names:
                own = self.family(name)
                at = path if own == family({}, self.dims) else name.rpartition(".")[0]
                apart.setdefault((at, own), []).append(name)
            for (at, _), held in apart.items():
                yield at, held, freed

    def _blocks(self, policy: StoragePolicy) -> Iterator[tuple[str, list[str], bool]]:
        names = {id(param): name for name, param in self.params.items()}
        paths = {id(module): path for path, module in self.model.named_modules()}
        left = dict.fromkeys(self.params)
        blocks: Sequence[Sequence[nn.Module]] = self.model.storage_blocks()
        for number, block in enumerate(blocks):
            held = [names[id(param)] for module in block for param in module.parameters() if names[id(param)] in left]
            for name in held:
                del left[name]
            yield (
                " + ".join(paths[id(module)] for module in block),
                held,
                policy.frees if number < len(blocks) - 1 else policy.frees_last,
            )
        if left:
            yield type(self.model).__name__, list(left), False


def storage(stored: Stored, times: int, policy: StoragePolicy) -> Iterator[Traffic]:
    """Gathers of parameters and sums of their gradients over the data axes, as FSDP makes them.

    times: micro-batches; a pipeline that frees nothing in between gathers once for all of them.
    """
    dims = stored.dims
    times = times if dims.pp == 1 or policy.frees else 1
    for path, names, freed in stored.groups(policy):
        size = stored.bytes_of(names, policy.precision)
        trained = stored.bytes_of([name for name in names if stored.states[name].trained], policy.reduce_precision)
        own = stored.family(names[0])
        axis, ranks = DP_SHARD if own == family({}, dims) else EFSDP, own.ranks(dims.base)
        if ranks > 1:
            each = sent("all_gather", ranks, size)
            yield _row(path, "parameters", axis, "all_gather", "all_gather" if freed else "", times, each, each)
            each = sent("reduce_scatter", ranks, trained * ranks)
            yield _row(path, "gradients", axis, "", "reduce_scatter", 1, 0, each)
        if dims.dp_replicate > 1:
            each = sent("all_reduce", dims.dp_replicate, trained)
            yield _row(path, "gradients", DP_REPLICATE, "", "all_reduce", 1, 0, each)


def sums(stored: Stored) -> Iterator[Traffic]:
    """Gradients that are R on an axis which the storage does not sum: all of an axis in one collective."""
    degrees = stored.dims.degrees(stored.dims.compute)
    owed: dict[str, int] = {}
    for info in stored.states.values():
        if info.trained:
            for axis in _owed(info, stored.dims):
                owed[axis] = owed.get(axis, 0) + stored.kept(info.name) * len(stored.condensed.places(info.name))
    for axis, size in owed.items():
        each = sent("all_reduce", degrees[axis], size)
        yield _row("optimizer", "gradients", axis, "", "all_reduce", 1, 0, each)


def _owed(info: StateInfo, dims: ParallelismDims) -> list[str]:
    owned = Fsdp.owned if dims.dp_replicate * dims.dp_shard > 1 else frozenset()
    return [axis for axis, kind in info.layout.items() if kind is R and axis not in owned]


def edges(stream: Seen, layout: SpmdLayout, view: View, dims: ParallelismDims, times: int) -> Iterator[Traffic]:
    """What goes from stage to stage of a pipeline, and its gradient back.

    times: micro-batches, of all stages of a rank. stream: at a boundary between layers; layout: as declared there.
    """
    if dims.pp > 1:
        size = math.prod(stream.part(layout, view)) * stream.dtype.itemsize
        yield _row("pipeline", "stream", PP, "send", "send", times, size, size)


def tied(stored: Stored, name: str, dims: ParallelismDims) -> Iterator[Traffic]:
    """The gradient of a parameter that two stages of a pipeline hold: each of the two sends its own to the other."""
    if stored.states[name].trained:
        yield _row("optimizer", f"gradient of {name}", PP, "", "send", 1, 0, stored.kept(name))


def loads(stored: Stored) -> Iterator[Traffic]:
    """The tokens of each expert, summed over the ranks that counted them: those of all layers together."""
    dims, model = stored.dims, stored.model
    if model.config.load is None or not model.loads:
        return
    layers = sum(len(stored.condensed.places(f"blocks.{name}")) for name in model.loads)
    size = layers * model.config.load.experts * _LONG
    degrees = {**dims.degrees(), PP: dims.pp}
    counted = cast(Load, next(iter(model.loads.values()))).contract
    over = counted.states["tokens"].src.partial if counted is not None else ()
    for axis in (*over, *([PP] if dims.pp > 1 else [])):
        each = sent("all_reduce", degrees[axis], size)
        yield _row("optimizer", "tokens of experts", axis, "all_reduce", "", 1, each, 0)


def numbers(dims: ParallelismDims) -> Iterator[Traffic]:
    """The count of valid tokens, the loss that is shown, and the norm of all gradients."""
    if dims.pp > 1:
        yield _row("optimizer", "loss", PP, "all_reduce", "", 1, sent("all_reduce", dims.pp, _FLOAT), 0)
    degrees: Mapping[str, int] = dims.degrees(DENSE)
    for axis in LOSS.partial:
        if degrees[axis] > 1:
            for what, size in (("valid tokens", _LONG), ("loss", _FLOAT)):
                yield _row("optimizer", what, axis, "all_reduce", "", 1, sent("all_reduce", degrees[axis], size), 0)
    if dims.world > 1:
        yield _row("optimizer", "norm", "world", "all_reduce", "", 1, sent("all_reduce", dims.world, _DOUBLE), 0)


def _row(module: str, what: str, axis: str, forward: str, backward: str, count: int, out: int, back: int) -> Traffic:
    return Traffic(
        module=module,
        what=what,
        axis=axis,
        forward=forward,
        backward=backward,
        count=count,
        sent_forward=count * out if forward else 0,
        sent_backward=count * back if backward else 0,
    )

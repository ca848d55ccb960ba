"""The passes of a step where layers stand on different ranks, through torch.distributed.pipelining.

An edge carries plain local tensors in the layout that the decoder declares for its stream, whatever the backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from meshwright.backends.base import Backend
from meshwright.comm.process_groups import ProcessGroup
from meshwright.models.decoder import Decoder
from meshwright.train.data import Batch
from meshwright.train.loss import LOSS, CrossEntropy, total
from meshwright.train.loss import charged as split_charge
from meshwright.train.passes import INPUT, Passes
from meshwright.train.stages import ORDERS, Schedule, rank_of, stages_of
from meshwright.types.layout import SpmdLayout

_SCHEDULES: Final[Mapping[Schedule, Any]] = MappingProxyType(
    {
        "gpipe": schedules.ScheduleGPipe,
        "1f1b": schedules.Schedule1F1B,
        "interleaved_1f1b": schedules.ScheduleInterleaved1F1B,
        "interleaved_zero_bubble": schedules.ScheduleInterleavedZeroBubble,
        "zbv": schedules.ScheduleZBVZeroBubble,
    }
)


class Stage(nn.Module):
    """A run of the decoder's units, from plain tensors to plain tensors: tokens or the stream, to the stream or logits,
    or to the sum of token losses where the head has the loss in itself.

    It shares its modules with the decoder of the rank, and runs them through it. leaves: the layout of what the last
    stage gives; scored: it is the sum of token losses. Where routers are charged, what they are charged so far goes
    with the stream; the last stage gives what is added to the loss, where something is.
    """

    def __init__(self, model: Decoder, backend: Backend, units: range, leaves: SpmdLayout, *, scored: bool) -> None:
        super().__init__()
        self.held = nn.ModuleList(model.parts(units))
        self.units, self.backend, self.is_first = units, backend, units[0] == model.units[0]
        self.takes_labels = scored and units[-1] == model.units[-1]
        self.run = model.__call__  # not a child: its parameters are those of all stages of the rank
        assert model.contract is not None
        self.stream = model.contract.inputs["stream"].src
        self.leaves = leaves if units[-1] == model.units[-1] else self.stream
        self.charges = model.charge is not None

    def forward(
        self,
        x: Tensor,
        charged: Tensor | None = None,
        *,
        positions: Tensor,
        documents: Tensor,
        labels: Tensor,
        **ahead: Tensor,
    ) -> Tensor | tuple[Tensor, Tensor]:
        enter, leave = self.backend.enter, self.backend.leave
        places = enter(positions, INPUT), enter(documents, INPUT)
        given: dict[str, Any] = {"units": self.units, "labels": enter(labels, INPUT) if self.takes_labels else None}
        if self.takes_labels:
            given |= {name: enter(field, INPUT) for name, field in ahead.items()}
        if self.charges:
            before = (
                torch.zeros((), device=x.device, requires_grad=torch.is_grad_enabled()) if charged is None else charged
            )
            given["charged"] = enter(before, LOSS)
        if self.is_first:
            out = self.run(enter(x, INPUT), *places, **given)
        else:
            out = self.run(None, *places, stream=enter(x, self.stream), **given)
        out, charge = split_charge(out)
        return leave(out, self.leaves) if charge is None else (leave(out, self.leaves), leave(charge, LOSS))


class Pipeline(Passes):
    """The passes of a rank that holds some of the layers.

    model: the units of this rank's stages alone; cuts: the units of every stage of the pipeline.
    """

    def __init__(
        self,
        model: Decoder,
        loss: CrossEntropy | None,
        backend: Backend,
        device: torch.device,
        schedule: Schedule,
        cuts: Sequence[range],
        dtype: torch.dtype,
    ) -> None:
        self.model, self.loss, self.backend, self.device = model, loss, backend, device
        self.schedule, self.cuts, self.dtype = schedule, cuts, dtype
        own = stages_of(backend.pipeline.index, backend.pipeline.size, ORDERS[schedule])
        leaves = LOSS if loss is None else _logits(loss)
        self.stages = {stage: Stage(model, backend, cuts[stage], leaves, scored=loss is None) for stage in own}
        self.valid = torch.ones(())
        self.shown: list[Tensor] = []  # the losses of the micro-batches of a step
        self.running: dict[tuple[int, ...], Any] = {}  # number of micro-batches and shape of their rows -> schedule

    def backward(self, batches: Sequence[Batch], valid: Tensor) -> Tensor:
        self.valid = valid
        fields = zip(*(batch.fields for batch in batches), strict=True)
        whole = Batch(*(torch.cat(parts).to(self.device, non_blocking=True) for parts in fields))
        ahead = {} if whole.ahead is None else {"ahead": whole.ahead, "ahead_labels": whole.ahead_labels}
        key = (len(batches), *batches[0].tokens.shape)
        if key not in self.running:
            self.running[key] = self._schedule(len(batches), batches[0])
        self.shown = []
        first, last = 0 in self.stages, len(self.cuts) - 1 in self.stages
        with self.backend.storage.held(self.model):
            self.running[key].step(
                *([whole.tokens] if first else []),
                positions=whole.positions,
                documents=whole.documents,
                labels=whole.labels,
                **ahead,
                target=whole.labels if last else None,
                return_outputs=False,
            )
        return total(self.shown) if self.shown else torch.zeros((), device=self.device)

    def losses(self, batch: Batch) -> Tensor:
        pipeline, order = self.backend.pipeline, ORDERS[self.schedule]
        tokens, labels, positions, documents, *_ = (part.to(self.device) for part in batch.fields)
        x = tokens
        for stage in range(len(self.cuts)):
            here = rank_of(stage, pipeline.size, order)
            if stage in self.stages:
                if stage > 0 and (before := rank_of(stage - 1, pipeline.size, order)) != here:
                    x = pipeline.recv(self._edge(batch, stage, self.device)[0], before)
                out = self.stages[stage](x, positions=positions, documents=documents, labels=labels)
                x, _ = split_charge(out)
                if stage < len(self.cuts) - 1 and (after := rank_of(stage + 1, pipeline.size, order)) != here:
                    pipeline.send(x, after)
        if len(self.cuts) - 1 in self.stages:
            return self._loss(x, labels)
        return torch.zeros((), device=self.device)

    def _loss(self, out: Tensor, labels: Tensor) -> Tensor:
        """The sum of the token losses, from what the last stage gives."""
        if self.loss is None:
            return out
        enter = self.backend.enter
        return self.backend.leave(self.loss(enter(out, _logits(self.loss)), enter(labels, INPUT)), LOSS)

    def _divided(self, out: Tensor | tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        """What backward begins with; what is shown of it is the loss alone."""
        out, charge = split_charge(out)
        loss = self._loss(out, labels) / self.valid
        self.shown.append(loss.detach())
        return loss if charge is None else loss + charge / self.valid

    def _schedule(self, count: int, like: Batch) -> Any:
        """Fixed for one number and shape of micro-batches: what the edges carry is stated, not found out."""
        pipeline = self.backend.pipeline
        assert isinstance(pipeline, ProcessGroup)
        stages = [
            PipelineStage(
                module,
                stage,
                len(self.cuts),
                self.device,
                input_args=(like.tokens.to("meta"),) if stage == 0 else self._edge(like, stage),
                output_args=self._edge(like, stage + 1),
                group=pipeline.group,
            )
            for stage, module in self.stages.items()
        ]
        single = ORDERS[self.schedule].per_rank == 1
        return _SCHEDULES[self.schedule](
            stages[0] if single else stages, n_microbatches=count, loss_fn=self._divided, scale_grads=False
        )

    def _edge(self, like: Batch, stage: int, device: torch.device | str = "meta") -> tuple[Tensor, ...]:
        """What goes into a stage, local and empty; for the stage behind the last what the loss is made of."""
        adds = self.model.charge is not None or (stage == len(self.cuts) and like.ahead is not None)
        added = [torch.empty((), device=device, requires_grad=True)] if adds else []
        return self._stream(like, stage, device), *added

    def _stream(self, like: Batch, stage: int, device: torch.device | str) -> Tensor:
        view, config = self.backend.view, self.model.config
        rows, length = like.tokens.shape
        features, layout = config.head.in_features, next(iter(self.stages.values())).stream
        if stage == len(self.cuts):
            if self.loss is None:
                return torch.empty((), device=device, requires_grad=True)
            features, layout = config.head.out_features, _logits(self.loss)
        shape = (rows * view["dp"].size, length * view["cp"].size, features)
        local = layout.local_shape(shape, view.degree, view.index)
        return torch.empty(local, dtype=self.dtype, device=device, requires_grad=True)


def _logits(loss: CrossEntropy) -> SpmdLayout:
    """How the loss takes its logits."""
    assert loss.contract is not None
    return loss.contract.inputs["logits"].src

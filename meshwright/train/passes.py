"""The forward and backward passes of a step, on a rank that holds all layers; a pipeline's are in `pipeline`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from meshwright.backends.base import Backend
from meshwright.models.decoder import Decoder
from meshwright.models.layouts import activation
from meshwright.train.data import Batch
from meshwright.train.loss import LOSS, CrossEntropy, token_losses, total
from meshwright.types.kinds import R

INPUT = activation(R)
"""The fields of a batch: [batch@dp, sequence@cp], the same on tp."""


class Passes(ABC):
    """How a rank takes part in the passes of a step. Both give float32 [], P over the data axes and pp."""

    @abstractmethod
    def backward(self, batches: Sequence[Batch], valid: Tensor) -> Tensor:
        """Forward and backward of all micro-batches: the sum of their token losses divided by `valid`, without graph.
        Gradients add to what is there; what is added to the loss, divided likewise, has its part in them."""

    @abstractmethod
    def losses(self, batch: Batch) -> Tensor:
        """The sum of the token losses of a micro-batch, forward alone."""


class Whole(Passes):
    """All layers on this rank: one micro-batch after the other."""

    def __init__(self, model: Decoder, loss: CrossEntropy | None, backend: Backend, device: torch.device) -> None:
        self.model, self.loss, self.backend, self.device = model, loss, backend, device

    def backward(self, batches: Sequence[Batch], valid: Tensor) -> Tensor:
        found = []
        for batch in batches:
            self.backend.storage.accumulate(self.model, last=batch is batches[-1])
            loss, charge = self._losses(batch)
            shown = loss / valid
            (shown if charge is None else shown + charge / valid).backward()
            found.append(shown.detach())
        return total(found)

    def losses(self, batch: Batch) -> Tensor:
        return self._losses(batch)[0]

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The sum of the token losses, and what is added to it."""
        fields = (self.backend.enter(part.to(self.device, non_blocking=True), INPUT) for part in batch.fields)
        loss, charge = token_losses(self.model, self.loss, *fields)
        leave = self.backend.leave
        return leave(loss, LOSS), None if charge is None else leave(charge, LOSS)

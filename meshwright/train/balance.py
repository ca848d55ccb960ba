"""How evenly tokens go to experts, over all ranks; and the biases that make it even without a loss.

Wang et al., arXiv:2408.15664; DeepSeek-AI, arXiv:2412.19437, 2.1.2.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from meshwright.backends.base import Backend
from meshwright.models.block import SparseBlock
from meshwright.models.decoder import Decoder
from meshwright.models.load import Load
from meshwright.models.router import Choice


class Balance:
    """The loads of one rank's layers, between steps.

    A rank counts what its own tokens chose; the counts are summed over ranks once a step, before anything is made of
    them. A router without a bias is left as it is. active: experts that each token chooses.
    """

    def __init__(self, model: Decoder, backend: Backend, device: torch.device) -> None:
        self.backend, self.device = backend, device
        sparse = model.config.sparse()
        self.layers = list(sparse)
        self.loads: dict[str, Load] = {name: cast(Load, load) for name, load in model.loads.items()}
        self.biases: dict[str, Tensor | None] = {name: _choice(block).bias for name, block in model.sparse().items()}
        config: Load.Config | None = model.config.load
        self.experts = config.experts if config is not None else 0
        self.rate = config.rate if config is not None else 0.0
        self.active = next(iter(sparse.values())).feed_forward.routed.router.choice.active if sparse else 0

    def begin(self) -> None:
        """A step begins: nothing is counted yet."""
        for load in self.loads.values():
            load.tokens.zero_()

    @torch.no_grad()
    def finish(self) -> Tensor | None:
        """A step ended: move the biases towards even loads. Tokens of each expert, int64 [sparse layers, experts], on
        all ranks alike; None where the model has no experts."""
        if not self.layers:
            return None
        found = {name: load.tokens for name, load in self.loads.items()}
        if found:
            first = next(iter(self.loads.values()))
            assert first.contract is not None
            over = first.contract.states["tokens"].src.partial
            summed = self.backend.total(torch.stack(list(found.values())), over)
            found = dict(zip(found, summed, strict=True))
        for name, counts in found.items():
            bias = self.biases[name]
            if bias is not None:
                bias += self.rate * torch.sign(counts.double().mean() - counts).to(bias.dtype)
        return self._of_all_stages(found)

    def _of_all_stages(self, found: dict[str, Tensor]) -> Tensor:
        pipeline = self.backend.pipeline
        if pipeline.size == 1:
            return torch.stack([found[name] for name in self.layers])
        none = torch.zeros(self.experts, dtype=torch.int64, device=self.device)
        return pipeline.all_reduce(torch.stack([found.get(name, none) for name in self.layers]))


def _choice(block: SparseBlock) -> Choice:
    return cast(Choice, block.feed_forward.routed.router.choice)

"""Forward and backward of a recipe's model on its first rank, as shapes: unchecked, and checked.

Both run the same ops on the same fake tensors; the checked one has its types stated where the layouts declare them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from meshwright.backends.base import Backend
from meshwright.backends.declared import Declared, apart, of_experts
from meshwright.backends.erased import Erased
from meshwright.backends.parallelize import parallelize
from meshwright.backends.storage import Replicated
from meshwright.check import no_typecheck, typecheck
from meshwright.comm.shapes import shape_view
from meshwright.core.contract import Contract
from meshwright.train.assemble import on_meta, run_dims
from meshwright.train.config import TrainConfig

ROWS = 2
"""Sequences of the rank."""


class Stated(Declared):
    """`Declared`, where what runs on local tensors is not judged inside: its results are what is declared."""

    def install(self, module: nn.Module, contract: Contract, path: str) -> None:
        if module.config.sharding_config.local_map is not None:
            kind = type(module)
            module.__class__ = type(kind.__name__, (kind,), {"forward": no_typecheck("a region")(kind.forward)})
        super().install(module, contract, path)


class Model:
    """Rank 0's model and loss of a recipe on a backend. Under a `FakeTensorMode`."""

    def __init__(self, config: TrainConfig, backend: Backend) -> None:
        self.config, self.backend = config, backend
        self.model, self.loss = on_meta(config)
        self.states = parallelize(self.model, backend)
        parallelize(self.loss, backend)

    def hold(self, states: dict[str, Tensor]) -> None:
        """Take these tensors for parameters and buffers."""
        for name, tensor in states.items():
            path, _, own = name.rpartition(".")
            module = self.model.get_submodule(path)
            if isinstance(tensor, nn.Parameter):
                module.register_parameter(own, tensor)
            else:
                module.register_buffer(own, tensor)

    def named(self) -> dict[str, Tensor]:
        """Parameters and buffers."""
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    def run(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Forward, loss and backward; the loss. Gradients stay until the next run."""
        self.model.zero_grad()
        *inputs, labels = batch
        loss: Tensor = self.loss(self.model(*inputs), labels)
        loss.backward()
        return loss


def programs(config: TrainConfig) -> dict[str, Callable[[], Tensor]]:
    """What runs a step and returns its loss, by name: unchecked, checked."""
    dims = run_dims(config)
    view, storage = shape_view(dims, 0), Replicated(dims, 0)
    stated = Stated(dims, view, storage, shape_view(dims, 0, apart(dims)), shape_view(dims, 0, of_experts(dims)))
    plain, checked = Model(config, Erased(dims, view, storage)), Model(config, stated)
    mode = FakeTensorMode()
    with mode:
        states = {name: _fake(tensor) for name, tensor in plain.named().items()}
        batch = tuple(torch.zeros(ROWS, config.training.length, dtype=torch.int64) for _ in range(4))
    plain.hold(states)
    checked.hold(states)

    def unchecked() -> Tensor:
        with mode:
            return plain.run(batch)

    def judged() -> Tensor:
        with mode, stated.scope(), typecheck():
            for name, tensor in states.items():
                stated.states(tensor, checked.states[name].layout)
            return checked.run(batch)

    return {"unchecked": unchecked, "checked": judged}


def _fake(tensor: Tensor) -> Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty

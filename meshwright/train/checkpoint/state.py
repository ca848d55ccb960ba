"""The tensors of a run by name: weights, what the optimizer knows of each, random state.

A name says whose a tensor is, never its place in a list. A rank has the names of its own part of the model; what is
tied has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from meshwright.comm.grid import lower
from meshwright.errors import ConfigError, Problem
from meshwright.train.assemble import Assembly
from meshwright.train.checkpoint.together import this_rank

WEIGHTS: Final = "weights."
OPTIMIZER: Final = "optimizer."
RANDOM: Final = "random."


def prime(optimizer: torch.optim.Optimizer) -> None:
    """Make the state that the optimizer has after a step, without a change to any weight: to be loaded into."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for param in group["params"]:
            param.grad = torch.zeros_like(param)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def tensors_of(run: Assembly) -> dict[str, Tensor]:
    """Weights and optimizer state as DTensors on the whole mesh, or plain where every rank has them whole. They share
    the memory of the run's own.

    Errors: `ConfigError` for a state that has no one value.
    """
    at_rest = run.model.state_dict(keep_vars=True)  # of what a validation has left gathered too: FSDP hears of it
    return _weights(run, at_rest) | _optimizer(run)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """This rank's generators: uint8 [n] each."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {f"{RANDOM}{this_rank()}.{kind}": state for kind, state in states.items()}


def set_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Put this rank's generators where those of `random_state` stood."""
    for name, state in states.items():
        if name.endswith(".cuda"):
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)


def _weights(run: Assembly, at_rest: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters, and the buffers that are not computed anew."""
    storage, found = run.backend.storage, {}
    for name, info in run.states.items():
        value = at_rest.get(name)
        if value is not None:
            is_parameter = isinstance(value, nn.Parameter)
            layout = info.stored if is_parameter else lower(info.layout, run.backend.axes)
            found[WEIGHTS + name] = storage.persist(value.detach(), info.shape, layout, name)
    return found


def _optimizer(run: Assembly) -> dict[str, Tensor]:
    names = {id(param): name for name, param in run.model.named_parameters()}
    found = {}
    for group in run.optimizer.param_groups:
        for param in group["params"]:
            name = names[id(param)]
            info = run.states[name]
            for key, value in run.optimizer.state[param].items():
                full = f"{OPTIMIZER}{name}.{key}"
                if not isinstance(value, Tensor) or (value.dim() and value.shape != param.shape):
                    raise ConfigError(
                        Problem(
                            where=full,
                            what="the optimizer keeps something that is no number and not of the parameter's shape",
                            why="its layout would not be known when it is loaded elsewhere",
                        )
                    )
                shared = value.dim() == 0  # a count of steps is the same on every rank
                found[full] = value if shared else run.backend.storage.persist(value, info.shape, info.stored, full)
    return found

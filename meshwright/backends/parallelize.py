"""From a model on meta to one rank's model: contracts compiled, states cut, crossings installed, values filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meshwright.backends.base import Backend
from meshwright.core.contract import Contract, compile_contract, own_buffers, own_parameters, own_states
from meshwright.core.init import Init, key_of
from meshwright.core.module import Module
from meshwright.core.place import Place
from meshwright.errors import ConfigError, Problem
from meshwright.types.kinds import R
from meshwright.types.layout import SpmdLayout


@dataclass(frozen=True)
class StateInfo:
    """A parameter or buffer, by the first name it goes by.

    shape: global. layout: at rest as declared, on the axes of compute that are on. stored: with the data-parallel
    storage on top, on the base axes. init: its first values. trained: whether it wants a gradient.
    """

    name: str
    shape: tuple[int, ...]
    layout: SpmdLayout
    stored: SpmdLayout
    init: Init
    trained: bool


States = Mapping[str, StateInfo]


def layouts_of(states: States) -> dict[str, SpmdLayout]:
    """Name -> the layout as declared, at rest."""
    return {name: info.layout for name, info in states.items()}


def parallelize(model: Module, backend: Backend) -> States:
    """Make `model` (on meta, global shapes) this rank's model, still on meta; its states by name.

    Errors: `ConfigError` with every problem of every module's declaration.
    """
    contracts = _compile(model, backend)
    states = _states(model, contracts, backend)
    shapes = {path: own_states(module) for path, module in model.named_modules()}
    params: dict[int, nn.Parameter] = {}  # what is tied stays one
    buffers: dict[int, Tensor] = {}
    for path, module in model.named_modules():
        contract = contracts.get(path)
        for name, param in own_parameters(module).items():
            if id(param) not in params:
                layout = contract.states[name].src if contract else _whole(backend)
                params[id(param)] = nn.Parameter(backend.state(param.data, layout), requires_grad=param.requires_grad)
            module.register_parameter(name, params[id(param)])
        for name, buffer in own_buffers(module).items():
            if id(buffer) not in buffers:
                layout = contract.states[name].src if contract else _whole(backend)
                shape = layout.local_shape(tuple(buffer.shape), backend.view.degree, backend.view.index)
                buffers[id(buffer)] = buffer.new_empty(shape)
            module.register_buffer(name, buffers[id(buffer)], persistent=_persistent(module, name))
        if isinstance(module, Module):
            module.contract = contract
            module.localize(
                Place(
                    shapes=shapes[path],
                    states={name: change.dst for name, change in contract.states.items()} if contract else {},
                    inputs={name: change.dst for name, change in contract.inputs.items()} if contract else {},
                    axes=backend.view,
                )
            )
            if contract is not None:
                backend.install(module, contract, path or type(module).__name__)
    return states


def materialise(model: nn.Module, backend: Backend, states: States, device: torch.device, seed: int) -> None:
    """Give every state memory on `device` and its first values, each rank its own part; ties and freezes stay."""
    storage = backend.storage
    params: dict[int, nn.Parameter] = {}
    buffers: dict[int, Tensor] = {}
    names = {id(tensor): name for name, tensor in _named_states(model)}
    for module in model.modules():
        for name, param in own_parameters(module).items():
            if id(param) not in params:
                fresh = nn.Parameter(storage.empty(param.data, device), requires_grad=param.requires_grad)
                info = states[names[id(param)]]
                _fill(storage.local(fresh), info.stored, info, storage.degree, storage.index, seed)
                params[id(param)] = fresh
            module.register_parameter(name, params[id(param)])
        for name, buffer in own_buffers(module).items():
            if id(buffer) not in buffers:
                info = states[names[id(buffer)]]
                buffers[id(buffer)] = torch.empty_like(buffer, device=device)
                _fill(buffers[id(buffer)], info.layout, info, backend.view.degree, backend.view.index, seed)
            module.register_buffer(name, buffers[id(buffer)], persistent=_persistent(module, name))


def _fill(
    local: Tensor,
    layout: SpmdLayout,
    info: StateInfo,
    degree: Mapping[str, int],
    index: Mapping[str, int],
    seed: int,
) -> None:
    if any(index.get(axis) for axis in layout.partial):
        local.zero_()  # of a sum over ranks the first holds all
        return
    spans = [layout.span(dim, length, degree, index) for dim, length in enumerate(info.shape)]
    info.init.fill(local, spans, info.shape, key_of(seed, info.name))


def _compile(model: Module, backend: Backend) -> dict[str, Contract]:
    contracts, roots, problems = {}, [], []
    for path, module in model.named_modules():
        where = path or type(module).__name__
        config = module.config if isinstance(module, Module) else None
        if config is not None:
            roots += config.problems(where, backend.dims)
        if config is not None and config.sharding_config is not None:
            contract, found = compile_contract(module, config.sharding_config, where, backend.dims, backend.axes)
            contracts[path] = contract
            problems += found
        elif own_states(module) and backend.dims.active(backend.axes):
            problems.append(_undeclared(module, where))
    if roots or problems:
        raise ConfigError(roots or problems)  # what a module cannot split shows in its states too: told once
    return contracts


def _undeclared(module: nn.Module, where: str) -> Problem:
    return Problem(
        where=f"{where}.sharding_config",
        what=f"{type(module).__name__} holds {', '.join(own_states(module))} and declares no sharding",
        why="what is not declared cannot be cut, and its gradient could not be summed over the right ranks",
        fix="sharding_config = ShardingConfig(state_shardings={...})",
    )


def _states(model: Module, contracts: Mapping[str, Contract], backend: Backend) -> dict[str, StateInfo]:
    """By the first name of each; problems: no first values, what is tied declared apart, what the storage refuses."""
    found: dict[int, StateInfo] = {}
    problems = []
    for path, module in model.named_modules():
        contract = contracts.get(path)
        inits = module.initializers() if isinstance(module, Module) else {}
        for own, tensor in (own_parameters(module) | own_buffers(module)).items():
            name = f"{path}.{own}" if path else own
            layout = contract.states[own].src if contract else _whole(backend)
            if id(tensor) in found:
                if found[id(tensor)].layout is not layout:
                    problems.append(_apart(found[id(tensor)], name, layout))
            elif own not in inits:
                problems.append(
                    Problem(
                        where=name,
                        what=f"{type(module).__name__} says nothing of its first values",
                        fix=f"initializers() returns an Init for {own!r}",
                    )
                )
            elif isinstance(tensor, nn.Parameter) and (refused := backend.storage.problems(name, layout)):
                problems += refused
            else:
                shape = tuple(tensor.shape)
                stored = backend.storage.rest(layout, backend.axes, shape)
                found[id(tensor)] = StateInfo(name, shape, layout, stored, inits[own], tensor.requires_grad)
    if problems:
        raise ConfigError(problems)
    return {info.name: info for info in found.values()}


def _apart(first: StateInfo, name: str, layout: SpmdLayout) -> Problem:
    return Problem(
        where=name,
        what=f"tied to {first.name}, but declared {layout} here and {first.layout} there",
        why="tied states are one tensor and lie in one way",
        fix="the same layout in both state_shardings",
    )


def _whole(backend: Backend) -> SpmdLayout:
    """Held whole by every rank, and so is its gradient's sum owed: on no axis, where none is on."""
    return SpmdLayout({axis: R for axis in backend.axes if axis in backend.dims.active(backend.axes)})


def _named_states(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _persistent(module: nn.Module, name: str) -> bool:
    return name not in module._non_persistent_buffers_set

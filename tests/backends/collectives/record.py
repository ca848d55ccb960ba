"""What a training step really calls: every collective that reaches torch, with the module that calls it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import _get_sequence_nr
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.audit.meter import sent
from meshwright.audit.whole import path_of
from meshwright.comm.grid import BASE, DENSE, PIPELINE, STORAGE, WORLD, ParallelismDims

OUTSIDE: Final = "step"
"""The module and the pass of what no module calls: sums of gradients, the norm, the numbers that are shown."""
_BROUGHT: Final = {
    "_c10d_functional.all_reduce": ("all_reduce", 0),
    "_c10d_functional.all_reduce_": ("all_reduce", 0),
    "_c10d_functional.all_gather_into_tensor": ("all_gather", 0),
    "_c10d_functional.reduce_scatter_tensor": ("reduce_scatter", 0),
    "_c10d_functional.all_to_all_single": ("all_to_all", 0),
    "_dtensor.shard_dim_alltoall": ("all_to_all", 0),
    "c10d._allgather_base_": ("all_gather", 1),
    "c10d._reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d.allreduce_": ("all_reduce", 0),
    "c10d.broadcast_": ("broadcast", 0),
    "c10d.send": ("send", 0),
    "c10d.recv_": ("recv", 0),
}
"""Op of torch -> what the files call it, and the place of the argument that the rank brings."""
_NAMESPACES: Final = frozenset(name.partition(".")[0] for name in _BROUGHT)
_SILENT: Final = frozenset({"_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd"})
_LABEL: Final = re.compile(r"FSDP::.* \((.+)\)$")


@dataclass(frozen=True, order=True)
class Called:
    """A collective. way: forward, backward or `OUTSIDE`; size: bytes that the rank sends in one call."""

    module: str
    op: str
    axis: str
    way: str
    size: int


class Recorder(TorchDispatchMode):
    """Counts the collectives of a step. calls: of all modules, blocks of a decoder taken together.

    A backward collective belongs to the module in whose forward its autograd node was made: their numbers tell. What
    FSDP calls belongs to the parameters that it names in its own labels for profilers.
    """

    def __init__(self, roots: Iterable[nn.Module], dims: ParallelismDims) -> None:
        super().__init__()
        self.dims = dims
        self.calls: Counter[Called] = Counter()
        self.paths = {id(module): path_of(name, module) for root in roots for name, module in root.named_modules()}
        self.running: list[tuple[str, int]] = []
        self.ran: list[tuple[int, int, str]] = []
        self.labels: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it takes itself apart into local ops, which come by here
        name = str(func.overloadpacket) if hasattr(func, "overloadpacket") else ""
        if name == "profiler._record_function_enter_new":
            self.labels.append(args[0])
        elif name == "profiler._record_function_exit":
            self.labels.pop()
        elif name.partition(".")[0] in _NAMESPACES and name not in _SILENT:
            self._note(name, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    @contextmanager
    def on(self) -> Iterator[None]:
        """Record what is called in the block."""
        with ExitStack() as hooks:
            for hook in (register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._exit)):
                hooks.callback(hook.remove)
            with self:
                yield

    def by_op(self) -> Counter[str]:
        """How often each is called."""
        counts: Counter[str] = Counter()
        for call, times in self.calls.items():
            counts[call.op] += times
        return counts

    def _enter(self, module: nn.Module, args: Any) -> None:
        if id(module) in self.paths:
            self.running.append((self.paths[id(module)], _get_sequence_nr()))

    def _exit(self, module: nn.Module, args: Any, result: Any) -> None:
        if id(module) in self.paths:
            path, first = self.running.pop()
            self.ran.append((first, _get_sequence_nr(), path))

    def _note(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        assert name in _BROUGHT, f"{name} is no collective that is known here: add it to _BROUGHT"
        op, place = _BROUGHT[name]
        brought = args[place]
        tensors = [brought] if isinstance(brought, Tensor) else list(brought)
        held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        group = _group([*args, *kwargs.values()])
        module, way = self._caller()
        if op in ("send", "recv"):
            ahead = args[2] > group.rank()
            module, way, size = "pipeline", "forward" if ahead == (op == "send") else "backward", held
        else:
            size = sent(op, group.size(), held)
        self.calls[Called(module, op, axis_of(dist.get_process_group_ranks(group), self.dims), way, size)] += 1

    def _caller(self) -> tuple[str, str]:
        node = torch._C._current_autograd_node()
        stored = [found[1] for label in self.labels if (found := _LABEL.match(label))]
        if stored:
            backward = any("backward" in label for label in self.labels)
            return merged(stored[-1].replace(", ", " + ")), "backward" if backward else "forward"
        if node is not None:
            number = node._sequence_nr()
            inside = [(last - first, path) for first, last, path in self.ran if first <= number < last]
            innermost = min(inside, key=lambda found: found[0], default=(0, OUTSIDE))  # of equals the first to end
            return merged(innermost[1]), "backward"
        return (merged(self.running[-1][0]), "forward") if self.running else (OUTSIDE, OUTSIDE)


def merged(path: str) -> str:
    """All blocks of a decoder under one name, also where a table says which: blocks.0-1.attention."""
    return re.sub(r"^blocks\.[\d-]+", "blocks.*", path)


def axis_of(ranks: Sequence[int], dims: ParallelismDims) -> str:
    """The axis whose ranks these are; axes with the same ranks have one name."""
    for parts, name in _names(dims).items():
        if dims.peers(ranks[0], parts) == tuple(sorted(ranks)):
            return name
    raise AssertionError(f"ranks {list(ranks)} are those of no axis of {dims}")


def same_axis(name: str, dims: ParallelismDims) -> str:
    """What `axis_of` calls an axis, or several that are joined, of any view."""
    every = {**dims.sparse(), **WORLD, **PIPELINE, **STORAGE, **DENSE}
    parts = {part for each in name.split(" x ") for part in every[each] if dims.base[part] > 1}
    return _names(dims)[tuple(part for part in BASE if part in parts)]


def _names(dims: ParallelismDims) -> dict[tuple[str, ...], str]:
    """Base axes that are on -> the name of the axis that joins them: that of the storage, if it has one."""
    on = [part for part in BASE if dims.base[part] > 1]
    joined: dict[tuple[str, ...], str] = {}
    for chosen in range(1, 1 << len(on)):
        parts = tuple(part for place, part in enumerate(on) if chosen >> place & 1)
        joined[parts] = " x ".join(parts)
    for axes in (WORLD, dims.sparse() if dims.ep > 1 else {}, DENSE, STORAGE, PIPELINE):
        for name, parts in axes.items():
            kept = tuple(part for part in parts if part in on)
            if kept:
                joined[kept] = name
    return joined


def _group(values: Sequence[Any]) -> dist.ProcessGroup:
    """The one among the arguments of an op, where it stands as an object or by its name; a name comes last."""
    for value in reversed(values):
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return dist.ProcessGroup.unbox(value)
    name = [value for value in values if isinstance(value, str)][-1]
    return dist.distributed_c10d._resolve_process_group(name)


def recorded(roots: Iterable[nn.Module], dims: ParallelismDims, step: Callable[[], object]) -> Counter[Called]:
    """The collectives of one step, after a first one that set everything up."""
    step()
    recorder = Recorder(roots, dims)
    with recorder.on():
        step()
    return recorder.calls

"""How blocks and loss are computed: what backward finds kept, and what is compiled. Layouts do not change by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from meshwright.errors import ConfigError, Problem
from meshwright.models.attention import WAYS, DotProduct
from meshwright.models.decoder import Decoder
from meshwright.train.chunked import ChunkedHead
from meshwright.train.config import ComputeConfig, TrainConfig
from meshwright.train.stages import SPLITS_BACKWARD

_aten, _c10d = torch.ops.aten, torch.ops._c10d_functional
KEPT: Final = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.higher_order.flex_attention,
        _aten._grouped_mm.default,
        torch.ops.meshwright.grouped_linear.default,
        torch.ops.meshwright.grouped_linear_weights.default,
        _c10d.all_reduce.default,
        _c10d.all_gather_into_tensor.default,
        _c10d.reduce_scatter_tensor.default,
        _c10d.all_to_all_single.default,
    }
)
"""What costs most to do twice: matrix products, attention, collectives."""


def set_up(model: Decoder, loss: nn.Module | None, config: ComputeConfig) -> None:
    """Make the forward of blocks and loss what `config` says. Names of parameters stay.

    Of the parts of a head with its loss nothing is kept but their losses.
    """
    blocks: dict[int, nn.Module] = {int(name): block for name, block in model.blocks.items()}
    if model.further is not None:
        blocks[len(model.config.blocks)] = model.further.block
    for module in model.modules():
        if isinstance(module, DotProduct):
            module.attend = WAYS[config.attention]
    head = model.head if isinstance(model.head, ChunkedHead) else None
    recompute = _RECOMPUTE[config.recompute]
    for number, block in blocks.items():
        if recompute is not None and number % recompute.every == 0:
            block.forward = partial(recompute.run, block.forward)
    if config.compile:
        torch._dynamo.config.capture_scalar_outputs = True  # how many rows a rank gets is read from a tensor
        ends = [(loss, "forward")] if loss is not None else [(head, "part")] if head is not None else []
        for module, name in (*((block, "forward") for block in blocks.values()), *ends):
            setattr(module, name, torch.compile(getattr(module, name), fullgraph=True))
    if head is not None and head.config.chunks > 1:
        head.part = partial(_whole, head.part)  # type: ignore[method-assign]


def problems(config: TrainConfig) -> list[Problem]:
    """What cannot be computed together: a schedule that runs the halves of a backward apart, and what has one backward
    for both."""
    return [
        *_without_storage(config),
        *_split_backward(config),
        *_table_twice(config),
        *_compiled_again(config),
        *on_device(config.compute, config.launch.device),
    ]


def on_device(compute: ComputeConfig, device: str) -> list[Problem]:
    """What cannot be computed on a kind of device; "auto": on one that is not known yet."""
    if compute.attention != "flex" or device != "cpu":
        return []
    return [
        Problem(
            where="compute.attention",
            what="'flex' on a cpu",
            why="flex_attention has no backward there",
            fix="--compute.attention auto, or --launch.device cuda",
        )
    ]


def demand_device(compute: ComputeConfig, device: str) -> None:
    """Errors: `ConfigError` for what cannot be computed on the device that was chosen."""
    wrong = on_device(compute, device)
    if wrong:
        raise ConfigError(wrong)


def _compiled_again(config: TrainConfig) -> list[Problem]:
    """The compiler takes no block that makes DTensors into a region which is run twice."""
    compute = config.compute
    if not compute.compile or compute.recompute == "none" or config.parallel.backend == "spmd_types":
        return []
    return [
        Problem(
            where="compute.recompute",
            what=f"{compute.recompute!r} of blocks that are compiled, on the backend {config.parallel.backend}",
            why="torch.compile refuses a checkpointed region that makes DTensors",
            fix="--compute.recompute none, or --compute.no-compile, or --parallel.backend spmd_types",
        )
    ]


def _without_storage(config: TrainConfig) -> list[Problem]:
    """What says how parameters are stored, where nothing stores them."""
    compute, parallel = config.compute, config.parallel
    if parallel.dp_replicate * parallel.dp_shard > 1 or compute.offload or compute.precision != "float32":
        return []
    return [
        Problem(
            where=f"compute.{name}",
            what=f"{getattr(compute, name)!r}, but every rank keeps its parameters as it computes with them",
            why="parameters are gathered and freed, and their gradients summed, over data-parallel ranks",
            fix=f"leave out --compute.{name.replace('_', '-')}, or --parallel.dp-shard 2",
        )
        for name, default in (("reshard", "auto"), ("reduce_precision", "float32"))
        if getattr(compute, name) != default
    ]


def _table_twice(config: TrainConfig) -> list[Problem]:
    """Weights that meet a token at two places, of which one leads to the other."""
    parallel, modules = config.parallel, config.model.modules()
    if not modules.tied or modules.further is None or parallel.pp == 1 or parallel.schedule not in SPLITS_BACKWARD:
        return []
    return [
        Problem(
            where="model.tied",
            what=f"a tied table, and a further prediction, under the schedule {parallel.schedule}",
            why="the schedule runs the gradients of inputs and of weights apart; those of a table that is both at the"
            " beginning and at the end of the further prediction would go through all of it twice",
            fix="--model.no-tied, or --model.further 0, or --parallel.schedule 1f1b",
        )
    ]


def _split_backward(config: TrainConfig) -> list[Problem]:
    if config.parallel.pp == 1 or config.parallel.schedule not in SPLITS_BACKWARD:
        return []
    return [
        Problem(
            where=f"compute.{name}",
            what=f"{value!r} under the schedule {config.parallel.schedule}",
            why=f"the schedule runs the gradients of inputs and of weights apart, and {why}",
            fix=f"{fix}, or --parallel.schedule 1f1b",
        )
        for (name, value), (why, fix) in _ONE_BACKWARD.items()
        if getattr(config.compute, name) == value
    ]


_ONE_BACKWARD: Final[Mapping[tuple[str, object], tuple[str, str]]] = MappingProxyType(
    {
        ("compile", True): ("a compiled block has one backward for both", "--compute.no-compile"),
        ("recompute", "ops"): ("what a block keeps of its ops is handed out once", "--compute.recompute full"),
        ("reshard", "always"): ("weights would be gone in between", "--compute.reshard auto"),
    }
)


def _whole(forward: Callable[..., Any], *args: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False)


def _without_costly_ops(forward: Callable[..., Any], *args: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, context_fn=_contexts)


def _contexts() -> Any:
    return create_selective_checkpoint_contexts(_policy)


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


@dataclass(frozen=True)
class _Recompute:
    """run: a block's forward under checkpointing; every: one block of how many has it."""

    run: Callable[..., Any]
    every: int = 1


_RECOMPUTE: Final[Mapping[str, _Recompute | None]] = MappingProxyType(
    {
        "none": None,
        "full": _Recompute(_whole),
        "selective": _Recompute(_whole, every=2),
        "ops": _Recompute(_without_costly_ops),
    }
)

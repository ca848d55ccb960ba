"""What a run is, in the few lines that stand above its course."""

from __future__ import annotations

import math
from dataclasses import fields

import torch

from meshwright.train.assemble import Assembly, on_meta
from meshwright.train.config import ComputeConfig, TrainConfig
from meshwright.train.data import Corpus
from meshwright.train.show.run_folder import RunFolder
from meshwright.train.show.screen import short
from meshwright.types.kinds import S
from meshwright.types.layout import SpmdLayout
from meshwright.types.notation import render


def describe(config: TrainConfig, run: Assembly, corpus: Corpus, folder: RunFolder) -> dict[str, str]:
    """Name -> value: model, parameters, mesh, layouts, data, run."""
    training = config.training
    states = list(run.states.values())
    count = sum(param.numel() for param in on_meta(config)[0].parameters() if param.requires_grad)
    storage = run.backend.storage
    stored = sum(
        math.prod(info.stored.local_shape(info.shape, storage.degree, storage.index)) for info in states if info.trained
    )
    device = str(run.device) if run.device.type == "cpu" else torch.cuda.get_device_name(run.device)
    return {
        "model": _numbers(config),
        "parameters": f"{short(count)}, {f'{short(stored)} on rank 0' if run.backend.dims.pp > 1 else _most(stored)}",
        "mesh": f"{run.backend.dims.shown} on {device}, backend {config.parallel.backend}{_pipeline(config)}",
        **_compute(config),
        "layouts": _layouts(config, run),
        "data": f"{short(corpus.train_tokens)} tokens in {_documents(corpus.train_documents)}, "
        f"{short(corpus.validation_tokens)} more for validation{_epochs(config, corpus)}",
        "steps": f"{training.steps} of {training.batch} x {training.length} tokens",
        "run": str(folder.path),
    }


def _documents(count: int) -> str:
    return f"{short(count)} document{'s' * (count != 1)}"


def _epochs(config: TrainConfig, corpus: Corpus) -> str:
    """How often the run goes round the data, where it does."""
    training = config.training
    epochs = training.steps * training.batch * training.length / corpus.train_tokens
    return f"; the run goes round them {epochs:.3g} times" if epochs > 1 else ""


def _most(stored: int) -> str:
    return f"at most {short(stored)} on a rank"


def _pipeline(config: TrainConfig) -> str:
    parallel = config.parallel
    return f", {parallel.schedule} of {parallel.filling} micro-batches" if parallel.pp > 1 else ""


def _compute(config: TrainConfig) -> dict[str, str]:
    """What is not as it is by default."""
    default = ComputeConfig()
    others = [
        f"{field.name} {value}"
        for field in fields(ComputeConfig)
        if (value := getattr(config.compute, field.name)) != getattr(default, field.name)
    ]
    return {"compute": ", ".join(others)} if others else {}


def _numbers(config: TrainConfig) -> str:
    model = config.model
    shown = ("layers", "dim", "heads", "kv_heads", "hidden", "experts", "active", "expert_hidden", "vocab")
    return f"{type(model).__name__}: " + ", ".join(
        f"{name} {getattr(model, name)}" for name in shown if hasattr(model, name)
    )


def _layouts(config: TrainConfig, run: Assembly) -> str:
    """The stream between blocks, and the logits that exist at a time."""
    training, model = config.training, config.model
    plan = config.parallel.plan
    rows, length = training.batch // (training.accumulate * config.parallel.filling), training.length

    def on(layout: SpmdLayout) -> SpmdLayout:
        return layout.only(run.backend.dims.active().__contains__)

    dim = getattr(model, "dim", None)
    stream = render("f32", (rows, length, dim), on(plan.residual)) if dim else str(on(plan.residual))
    logits = render(
        "f32", (rows, length // config.compute.loss_chunks, model.vocab), on(plan.residual.replace(tp=S(2)))
    )
    return f"stream {stream}, logits {logits}"

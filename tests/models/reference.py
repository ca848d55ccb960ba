"""Logits held against those of `transformers` with the same weights."""

from __future__ import annotations

from typing import Any

import torch

from meshwright.train.assemble import Assembly
from meshwright.train.config import TrainConfig
from tests.parity.harness import alone_on_cpu

NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "blocks": "model.layers",
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}


def their_name(name: str) -> str:
    head, *rest = name.split(".")
    if head != "blocks":
        return ".".join((NAMES[head], *rest))
    number, part = rest[0], ".".join(rest[1:-1])
    return ".".join((NAMES["blocks"], number, NAMES[part], rest[-1]))


def assert_same_logits(config: TrainConfig, theirs: Any, run: Assembly | None = None) -> None:
    """theirs: a causal model of the same numbers, which takes over the weights of `run`, by default fresh ones."""
    run = run or alone_on_cpu(config)
    state = {their_name(name): param.detach() for name, param in run.model.named_parameters()}
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    assert [name for name in missing if name != "lm_head.weight" or not config.model.tied] == []
    theirs.tie_weights()
    tokens = torch.randint(config.model.vocab, (3, 48), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        mine, reference = run.model(tokens), theirs(tokens).logits
    assert reference.std() > 0.1
    assert (mine - reference).abs().max() < 1e-5 * reference.abs().max()

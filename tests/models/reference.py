"""Logits held against those of `transformers` with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

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
    "feed_forward.routed.router.gate": "mlp.gate",
    "feed_forward.routed.router.choice.bias": "mlp.gate.e_score_correction_bias",
    "feed_forward.routed.experts.w1": "mlp.experts.gate_up_proj",
    "feed_forward.routed.experts.w2": "mlp.experts.down_proj",
    "feed_forward.shared.w1": "mlp.shared_experts.gate_proj",
    "feed_forward.shared.w2": "mlp.shared_experts.down_proj",
    "feed_forward.shared.w3": "mlp.shared_experts.up_proj",
}


def their_name(name: str, names: Mapping[str, str] = NAMES) -> str:
    """The name of a state of ours: of a whole one by its own, of a module's weight by the module's."""
    head, *rest = name.split(".")
    if head != "blocks":
        return ".".join((names[head], *rest))
    number, *part = rest
    own = ".".join(part)
    theirs = names[own] if own in names else f"{names['.'.join(part[:-1])]}.{part[-1]}"
    return f"{names['blocks']}.{number}.{theirs}"


def their_state(run: Assembly, names: Mapping[str, str] = NAMES) -> dict[str, Tensor]:
    """What they call our states; in their experts w1 and w3 are one."""
    state: dict[str, Tensor] = dict(run.model.state_dict())
    for name in [name for name in state if name.endswith("experts.w3")]:
        first = name.removesuffix("w3") + "w1"
        state[first] = torch.cat((state[first], state.pop(name)), 1)
    return {their_name(name, names): value for name, value in state.items()}


def stirred(run: Assembly) -> Assembly:
    """With other weights of norms, which begin as ones, and other biases of routers, which begin as zeros."""
    generator = torch.Generator().manual_seed(3)
    for name, state in run.model.state_dict().items():
        if state.dim() == 1:
            low, high = (-0.1, 0.1) if name.endswith("bias") else (0.5, 2.0)
            state.uniform_(low, high, generator=generator)
    return run


def assert_same_logits(
    config: TrainConfig,
    theirs: Any,
    run: Assembly | None = None,
    state: Callable[[Assembly], dict[str, Tensor]] = their_state,
) -> None:
    """theirs: a causal model of the same numbers, which takes over the weights of `run`, by default fresh ones; state:
    what it calls them."""
    run = run or alone_on_cpu(config)
    missing, unexpected = theirs.load_state_dict(state(run), strict=False)
    assert missing == unexpected == []
    theirs.tie_weights()
    tokens = torch.randint(config.model.vocab, (3, 48), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        mine, reference = run.model(tokens), theirs(tokens).logits
    mine = mine[0] if isinstance(mine, tuple) else mine  # beside the charge of routers
    assert reference.std() > 0.1
    assert (mine - reference).abs().max() < 1e-5 * reference.abs().max()

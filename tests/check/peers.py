"""Models of transformers, small: written by others, who knew nothing of types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.errors import SpmdTypeError

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S
Batch = dict[str, Tensor]
BATCH, LENGTH, WORDS = 4, 8, 64


class Peer(NamedTuple):
    """model: its class; config: of what class, with what settings; batch: what its forward takes."""

    model: str
    config: str
    settings: dict[str, Any]
    batch: Callable[[], Batch]

    def build(self, transformers: Any) -> nn.Module:
        """The model, with the weights that its own initialization gives it."""
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.settings)
        config.use_cache = False
        model: nn.Module = getattr(transformers, self.model)(config)
        return model


def words() -> Tensor:
    """[BATCH, LENGTH] token ids."""
    return torch.randint(3, WORDS, (BATCH, LENGTH))


def text() -> Batch:
    """Tokens that are their own labels."""
    tokens = words()
    return {"input_ids": tokens, "labels": tokens.clone()}


def pair() -> Batch:
    """What an encoder reads, and what a decoder is to say."""
    return {"input_ids": words(), "decoder_input_ids": words(), "labels": words()}


def classes() -> Batch:
    """A text and its class."""
    return {"input_ids": words(), "labels": torch.randint(0, 2, (BATCH,))}


def unlabelled() -> Batch:
    """Tokens alone."""
    return {"input_ids": words()}


def images() -> Batch:
    """Pictures of 32 by 32 and their classes."""
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32), "labels": torch.randint(0, 2, (BATCH,))}


def sound() -> Batch:
    """Waves of 400 samples."""
    return {"input_values": torch.randn(BATCH, 400)}


def gradients(model: nn.Module, batch: Batch, local: bool) -> dict[str, Mapping[str, spmd.SpmdType]]:
    """Parameter -> the type of its gradient, of one step of what one rank of dp holds of the batch.

    The loss is the model's own, or the sum of the squares of what comes out first.

    Errors: `SpmdTypeError` where the step is refused.
    """
    with spmd.set_current_mesh(spmd.mesh(dp=2)), spmd.typecheck(local=local):
        spmd.assert_type([*model.parameters(), *model.buffers()], {"dp": R})
        batch = {name: spmd.assert_type(x, {"dp": V if local else S(0)}) for name, x in batch.items()}
        torch.manual_seed(spmd.axis_index("dp"))
        out = model(**batch)
        loss = getattr(out, "loss", None)
        if loss is None:
            found = next(x for x in out.to_tuple() if isinstance(x, Tensor) and x.is_floating_point())
            loss = found.float().square().sum()
        if local:
            loss = spmd.reinterpret(loss, "dp", src=V, dst=P)
        spmd.all_reduce(loss, "dp", src=P, dst=I).backward()
        return {name: spmd.layout_of(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def demand_right(step: Callable[[], dict[str, Mapping[str, spmd.SpmdType]]], why: tuple[Code, str] | None) -> None:
    """Each gradient of a step is a part of a sum over the ranks; or, where there is a reason, that is what is said."""
    if why is None:
        found = step()
        assert found
        assert all(layout == {"dp": P} for layout in found.values()), found
        return
    with pytest.raises(SpmdTypeError) as error:
        step()
    (problem,) = error.value.problems
    assert problem.code is why[0]
    assert why[1] in problem.what


_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LAYERS = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_SIZE = {**_LAYERS, **_SPECIAL, "vocab_size": WORDS, "max_position_embeddings": 64}
_SHARED = {**_SIZE, "num_key_value_heads": 2}
_HEADS = {**_SHARED, "head_dim": 8}
_GPT = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_VIT = {**_LAYERS, "image_size": 32, "patch_size": 8}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}
_SIDES = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
_BART = {
    "vocab_size": WORDS,
    "d_model": 32,
    **{f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in _SIDES.items()},
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
    **_SPECIAL,
}
_T5 = {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
_LATENT = {
    **_SIZE,
    **_EXPERTS,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}
_SOUND = {
    **_LAYERS,
    "conv_dim": (8, 8),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
}
_DISTIL = {
    "vocab_size": WORDS,
    "dim": 32,
    "hidden_dim": 64,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": 64,
}
_OPT = {"vocab_size": WORDS, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_SWIN = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "image_size": 32, "patch_size": 4}
_MPT = {"vocab_size": WORDS, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}

PEERS = {
    "albert": Peer("AlbertForMaskedLM", "AlbertConfig", {**_SIZE, "embedding_size": 16}, text),
    "bart": Peer("BartForConditionalGeneration", "BartConfig", _BART, pair),
    "bert": Peer("BertForMaskedLM", "BertConfig", _SIZE, text),
    "bert, classes": Peer("BertForSequenceClassification", "BertConfig", _SIZE, classes),
    "bloom": Peer(
        "BloomForCausalLM", "BloomConfig", {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4}, text
    ),
    "clip": Peer("CLIPTextModel", "CLIPTextConfig", _SIZE, unlabelled),
    "convnext": Peer(
        "ConvNextForImageClassification", "ConvNextConfig", {**_STAGES, "num_stages": 2, "image_size": 32}, images
    ),
    "deepseek_v3": Peer("DeepseekV3ForCausalLM", "DeepseekV3Config", _LATENT, text),
    "deit": Peer("DeiTForImageClassification", "DeiTConfig", _VIT, images),
    "dinov2": Peer("Dinov2ForImageClassification", "Dinov2Config", _VIT, images),
    "distilbert": Peer("DistilBertForMaskedLM", "DistilBertConfig", _DISTIL, text),
    "electra": Peer("ElectraForMaskedLM", "ElectraConfig", {**_SIZE, "embedding_size": 32}, text),
    "falcon": Peer("FalconForCausalLM", "FalconConfig", _SIZE, text),
    "gemma": Peer("GemmaForCausalLM", "GemmaConfig", _HEADS, text),
    "gemma2": Peer("Gemma2ForCausalLM", "Gemma2Config", _HEADS, text),
    "gpt2": Peer("GPT2LMHeadModel", "GPT2Config", _GPT, text),
    "gpt2, classes": Peer("GPT2ForSequenceClassification", "GPT2Config", {**_GPT, "pad_token_id": 0}, classes),
    "gptj": Peer("GPTJForCausalLM", "GPTJConfig", {**_GPT, "rotary_dim": 4}, text),
    "gptneox": Peer("GPTNeoXForCausalLM", "GPTNeoXConfig", _SIZE, text),
    "llama": Peer("LlamaForCausalLM", "LlamaConfig", _HEADS, text),
    "llama, classes": Peer("LlamaForSequenceClassification", "LlamaConfig", _HEADS, classes),
    "mamba": Peer(
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        text,
    ),
    "mistral": Peer("MistralForCausalLM", "MistralConfig", _HEADS, text),
    "mixtral": Peer("MixtralForCausalLM", "MixtralConfig", {**_HEADS, "num_local_experts": 4}, text),
    "mpt": Peer("MptForCausalLM", "MptConfig", _MPT, text),
    "olmo2": Peer("Olmo2ForCausalLM", "Olmo2Config", _SHARED, text),
    "opt": Peer(
        "OPTForCausalLM", "OPTConfig", {**_OPT, "max_position_embeddings": 64, "word_embed_proj_dim": 32}, text
    ),
    "phi": Peer("PhiForCausalLM", "PhiConfig", _SIZE, text),
    "qwen2": Peer("Qwen2ForCausalLM", "Qwen2Config", _SHARED, text),
    "qwen3": Peer("Qwen3ForCausalLM", "Qwen3Config", _HEADS, text),
    "qwen3_moe": Peer("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**_HEADS, **_EXPERTS, "num_experts": 4}, text),
    "resnet": Peer("ResNetForImageClassification", "ResNetConfig", {**_STAGES, "embedding_size": 8}, images),
    "roberta": Peer("RobertaForMaskedLM", "RobertaConfig", _SIZE, text),
    "stablelm": Peer("StableLmForCausalLM", "StableLmConfig", _SHARED, text),
    "swin": Peer("SwinForImageClassification", "SwinConfig", _SWIN, images),
    "t5": Peer("T5ForConditionalGeneration", "T5Config", {**_T5, "decoder_start_token_id": 0}, pair),
    "vit": Peer("ViTForImageClassification", "ViTConfig", _VIT, images),
    "wav2vec2": Peer("Wav2Vec2Model", "Wav2Vec2Config", _SOUND, sound),
}

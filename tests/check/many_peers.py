"""Many models of transformers, each made small by whatever lengths its config has."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

BATCH, LENGTH, WORDS = 4, 16, 64

NAMES = """
ApertusForCausalLM ArceeForCausalLM BeitForImageClassification BigBirdForMaskedLM BioGptForCausalLM
BlenderbotForConditionalGeneration CLIPVisionModel CTRLLMHeadModel CamembertForMaskedLM Cohere2ForCausalLM
CohereForCausalLM ConvBertForMaskedLM CvtForImageClassification DPTModel Data2VecAudioModel Data2VecVisionModel
DebertaForMaskedLM DebertaV2ForMaskedLM DiffLlamaForCausalLM Dinov2WithRegistersModel Ernie4_5ForCausalLM
ErnieForMaskedLM FNetForMaskedLM FocalNetModel GPTBigCodeForCausalLM Gemma3ForCausalLM Glm4ForCausalLM GlmForCausalLM
GptOssForCausalLM GraniteForCausalLM GraniteMoeForCausalLM HeliumForCausalLM HubertModel HunYuanDenseV1ForCausalLM
JambaForCausalLM LEDForConditionalGeneration LayoutLMForMaskedLM Lfm2ForCausalLM LongT5ForConditionalGeneration
LongformerForMaskedLM M2M100ForConditionalGeneration MBartForConditionalGeneration MPNetForMaskedLM
MT5ForConditionalGeneration Mask2FormerModel MegatronBertForMaskedLM MobileNetV2ForImageClassification
MobileViTForImageClassification ModernBertForMaskedLM MraForMaskedLM NemotronForCausalLM NystromformerForMaskedLM
OlmoForCausalLM OlmoeForCausalLM OpenAIGPTLMHeadModel PegasusForConditionalGeneration PerceiverForMaskedLM
PersimmonForCausalLM Phi3ForCausalLM PoolFormerForImageClassification PvtForImageClassification Qwen2MoeForCausalLM
Qwen3NextForCausalLM RecurrentGemmaForCausalLM RegNetForImageClassification RoFormerForMaskedLM RwkvForCausalLM
SEWModel SegformerForImageClassification SiglipTextModel SiglipVisionModel SmolLM3ForCausalLM SqueezeBertForMaskedLM
Starcoder2ForCausalLM SwitchTransformersForConditionalGeneration TimesformerModel UMT5ForConditionalGeneration
UniSpeechModel ViTMAEModel ViTMSNForImageClassification VideoMAEModel VivitModel Wav2Vec2ConformerModel WavLMModel
WhisperForConditionalGeneration XGLMForCausalLM XLMRobertaForMaskedLM YolosModel YosoForMaskedLM
""".split()  # noqa: SIM905

SMALL = {
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "n_positions", "intermediate_size", "ffn_dim"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "hidden_dim"), 64),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim", "dim"), 32),
    **dict.fromkeys(("num_mel_bins", "n_mels", "moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("head_dim", "d_kv", "patch_size"), 8),
    **dict.fromkeys(("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads", "n_head"), 4),
    **dict.fromkeys(("num_heads", "n_heads", "num_local_experts", "num_experts", "attention_window", "num_frames"), 4),
    **dict.fromkeys(("mamba_d_state", "mamba_d_conv", "time_step_rank", "state_size"), 4),
    **dict.fromkeys(("num_hidden_layers", "encoder_layers", "decoder_layers", "n_layer", "num_layers", "n_layers"), 2),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "type_vocab_size", "expand", "tubelet_size"), 2),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop", "layerdrop", "mask_time_prob"), 0.0),
    "image_size": 32,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "n_groups": 1,
    "partial_rotary_factor": 0.5,
    "conv_dim": (8, 8),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
}


def build(transformers: Any, name: str) -> nn.Module:
    """A small model of that name, without dropout."""
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    usual = cls.config_class()
    settings = {
        key: value
        for key, value in SMALL.items()
        if hasattr(usual, key) and isinstance(value, tuple) >= isinstance(getattr(usual, key), (list, tuple, dict))
    }
    config = cls.config_class(**settings)
    config.use_cache = False
    for key, value in vars(config).items():
        if "drop" in key and isinstance(value, float):
            setattr(config, key, 0.0)
    model: nn.Module = cls(config).eval()
    model.config.pad_token_id = None  # else a warning reads the tokens
    return model


def batch(model: nn.Module, name: str) -> dict[str, Tensor]:
    """What its forward takes."""
    taken = inspect.signature(model.forward).parameters
    frames = (4,) if any(kind in name for kind in ("Video", "Times", "Vivit")) else ()
    made = {
        "input_ids": lambda: torch.randint(3, WORDS, (BATCH, LENGTH)),
        "decoder_input_ids": lambda: torch.randint(3, WORDS, (BATCH, LENGTH)),
        "input_features": lambda: torch.randn(BATCH, 16, 128),
        "pixel_values": lambda: torch.randn(BATCH, *frames, 3, 32, 32),
        "input_values": lambda: torch.randn(BATCH, 400),
    }
    found = {key: make() for key, make in made.items() if key in taken}
    return found or {"inputs": torch.randint(3, WORDS, (BATCH, LENGTH))}

"""Architectures of PyTorch's own benchmarks of torch.compile (benchmarks/dynamo), of Hugging Face's transformers and of
timm, at reduced size with random weights. Needs `transformers` and `timm`."""

from __future__ import annotations

from typing import Any

import torch

_NAMED = (
    "AlbertForMaskedLM", "AlbertForQuestionAnswering", "BartForCausalLM", "BartForConditionalGeneration",
    "BertForMaskedLM", "BertForQuestionAnswering", "BlenderbotForCausalLM", "BlenderbotForConditionalGeneration",
    "BlenderbotSmallForCausalLM", "BlenderbotSmallForConditionalGeneration", "DebertaV2ForMaskedLM",
    "DebertaV2ForQuestionAnswering", "DistilBertForMaskedLM", "DistilBertForQuestionAnswering", "ElectraForCausalLM",
    "ElectraForQuestionAnswering", "GPT2ForSequenceClassification", "GPTJForCausalLM", "GPTJForQuestionAnswering",
    "GPTNeoForCausalLM", "GPTNeoForSequenceClassification", "LayoutLMForMaskedLM",
    "LayoutLMForSequenceClassification", "M2M100ForConditionalGeneration", "MBartForCausalLM",
    "MBartForConditionalGeneration", "MT5ForConditionalGeneration", "MegatronBertForCausalLM",
    "MegatronBertForQuestionAnswering", "MobileBertForMaskedLM", "MobileBertForQuestionAnswering", "OPTForCausalLM",
    "PLBartForCausalLM", "PLBartForConditionalGeneration", "PegasusForCausalLM", "PegasusForConditionalGeneration",
    "RobertaForCausalLM", "RobertaForQuestionAnswering", "T5ForConditionalGeneration", "TrOCRForCausalLM",
    "XGLMForCausalLM", "XLNetLMHeadModel",
)  # fmt: skip
TRANSFORMERS: dict[str, str] = {
    **{name: name for name in _NAMED},
    "AllenaiLongformerBase": "LongformerForMaskedLM", "CamemBert": "CamembertForMaskedLM",
    "DistillGPT2": "GPT2LMHeadModel", "GoogleFnet": "FNetForMaskedLM", "T5Small": "T5ForConditionalGeneration",
    "YituTechConvBert": "ConvBertForMaskedLM", "Llama-3.2-1B": "LlamaForCausalLM", "gemma-2-2b": "Gemma2ForCausalLM",
    "gemma-3-4b-it": "Gemma3ForCausalLM", "whisper-tiny": "WhisperForConditionalGeneration",
    "Qwen3-0.6B": "Qwen3ForCausalLM", "Mistral-7B-Instruct-v0.3": "MistralForCausalLM",
    "gpt-oss-20b": "GptOssForCausalLM",
}  # fmt: skip
"""Name in the list → class."""
TIMM = (
    "adv_inception_v3", "beit_base_patch16_224", "convnextv2_nano.fcmae_ft_in22k_in1k",
    "deit_base_distilled_patch16_224", "deit_tiny_patch16_224.fb_in1k", "dm_nfnet_f0", "ghostnet_100", "inception_v3",
    "mobilenetv2_100", "mobilenetv3_large_100", "mobilevit_s", "nfnet_l0", "repvgg_a2", "swin_base_patch4_window7_224",
    "tf_efficientnet_b0", "visformer_small", "vit_base_patch14_dinov2.lvd142m", "vit_base_patch16_siglip_256",
)  # fmt: skip
VOCABULARY, POSITIONS = 1000, 128
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 256, "d_model": 256, "n_embd": 256, "dim": 256, "embedding_size": 128,
    "num_hidden_layers": 2, "encoder_layers": 2, "decoder_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2,
    "num_decoder_layers": 2, "num_attention_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "n_head": 4, "n_heads": 4, "num_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512, "d_ff": 512,
    "encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "ffn_dim": 512, "hidden_dim": 512, "d_inner": 512, "n_inner": 512,
    "attention_heads": 4, "head_dim": 64, "d_kv": 64, "d_head": 64, "rotary_dim": 32, "num_local_experts": 4,
    "attention_types": [[["global", "local"], 1]], "hidden_size_per_layer_input": 32, "word_embed_proj_dim": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "max_source_positions": 64,
    "query_pre_attn_scalar": 64, "attention_window": [64, 64], "cross_attention_hidden_size": 256,
    "begin_suppress_tokens": None, "suppress_tokens": None, "layer_types": None, "sliding_window": 64,
}  # fmt: skip
"""Settings of the configurations that have them."""


_DEFINED: list[torch.library.Library] = []


def define_detection() -> None:
    """Declares torchvision's own operators where its library does not load beside this PyTorch: it cannot be imported
    without, and none of the architectures uses them."""
    if not _DEFINED and not hasattr(torch.ops.torchvision, "nms"):
        _DEFINED.append(torch.library.Library("torchvision", "DEF"))
        _DEFINED[0].define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DEFINED[0].define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def hugging_face(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model of transformers and its inputs: 1 × 128 tokens."""
    import transformers

    cls = getattr(transformers, TRANSFORMERS[name])
    config_class = cls.config_class
    known = config_class()
    given = {k: v for k, v in SMALL.items() if hasattr(known, k)}
    if name.startswith("MobileBert"):
        given |= {"hidden_size": 128, "intra_bottleneck_size": 128, "embedding_size": 128, "true_hidden_size": 128}
    if name.startswith(("T5", "MT5")):
        given.pop("hidden_size", None)
    config = config_class(**given)
    config.use_cache = False
    model = cls(config).eval()
    ids = torch.randint(3, VOCABULARY, (1, POSITIONS))
    if name.startswith("whisper"):
        frames = torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions)
        return model, {"input_features": frames, "decoder_input_ids": ids[:, :64]}
    inputs = {"input_ids": ids}
    if (config.is_encoder_decoder and "Conditional" in name) or name == "T5Small":
        inputs["decoder_input_ids"] = ids.flip(1)
    return model, inputs


def image_net(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model of timm and its input: one small image."""
    import timm

    if name.startswith(("beit", "deit", "vit", "swin")):
        small = {"img_size": 112, "depths": (1, 1, 2, 1)} if "swin" in name else {"img_size": 112, "depth": 4}
        model, size = timm.create_model(name, pretrained=False, **small), 112
    else:
        size = 224 if "visformer" in name else 128
        model = timm.create_model(name, pretrained=False)
    return model.eval(), {"x": torch.randn(1, 3, size, size)}


def names() -> list[str]:
    """All of them."""
    return [*sorted(TRANSFORMERS), *TIMM]


def build(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """An architecture with random weights, and its inputs by name.

    Raises:
        KeyError: there is none of that name.
    """
    define_detection()
    torch.manual_seed(0)
    if name in TIMM:
        model, inputs = image_net(name)
        return model, inputs
    return hugging_face(name)


__all__ = ["build", "names"]

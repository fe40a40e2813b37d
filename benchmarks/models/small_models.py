"""Small real models with random weights, each with one batch that has labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from dlrm import Dlrm
from mingpt import MinGpt, MinGptConfig
from resnet50 import ResNet50
from torch import nn
from transformers.modeling_outputs import ImageClassifierOutput
from unet import UNet

Case = tuple[nn.Module, dict[str, Any]]
VOCAB = 199
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
NO_VOCAB = {k: v for k, v in SIZES.items() if k != "vocab_size"}
IMAGES = {"image_size": 32, "patch_size": 8}


def logits_of(out: Any) -> torch.Tensor:
    """What a model's output is compared by."""
    return out.logits_per_image if hasattr(out, "logits_per_image") else out.logits


def tokens(*shape: int) -> torch.Tensor:
    """Token numbers, none of them special."""
    return torch.randint(3, VOCAB, shape)


def _language_model(cls: Any, config: Any) -> Case:
    ids = tokens(2, 17)
    return cls(config), {"input_ids": ids, "labels": ids}


# ---------------------------------------------------------------- Transformers


def llama() -> Case:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
    return _language_model(transformers.LlamaForCausalLM, config)


def qwen3() -> Case:
    config = transformers.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=12)
    return _language_model(transformers.Qwen3ForCausalLM, config)


def qwen3_moe() -> Case:
    config = transformers.Qwen3MoeConfig(
        **SIZES,
        num_key_value_heads=2,
        head_dim=12,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        decoder_sparse_step=1,
    )
    return _language_model(transformers.Qwen3MoeForCausalLM, config)


def gemma3() -> Case:
    config = transformers.Gemma3TextConfig(
        **SIZES,
        num_key_value_heads=2,
        head_dim=12,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    )
    return _language_model(transformers.Gemma3ForCausalLM, config)


def gpt2() -> Case:
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_embd=48,
        n_layer=2,
        n_head=4,
        n_positions=32,
        bos_token_id=1,
        eos_token_id=1,
    )
    case = _language_model(transformers.GPT2LMHeadModel, config)
    case[0].loss_type = "ForCausalLM"  # unset, it logs a warning, which ends Dynamo's graph
    return case


def bert() -> Case:
    config = transformers.BertConfig(**SIZES, max_position_embeddings=32)
    lengths = torch.tensor([[17], [9]])
    return transformers.BertForSequenceClassification(config), {
        "input_ids": tokens(2, 17),
        "attention_mask": (torch.arange(17)[None] < lengths).long(),
        "labels": torch.tensor([0, 1]),
    }


def t5() -> Case:
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=48,
        d_kv=12,
        d_ff=96,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    inputs = {"input_ids": tokens(2, 13), "labels": tokens(2, 9)}
    return transformers.T5ForConditionalGeneration(config), inputs


def vit() -> Case:
    config = transformers.ViTConfig(**NO_VOCAB, **IMAGES, num_labels=5)
    return transformers.ViTForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 32, 32),
        "labels": torch.tensor([0, 3]),
    }


def clip() -> Case:
    text = {**SIZES, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**NO_VOCAB, **IMAGES}, projection_dim=24
    )
    return transformers.CLIPModel(config), {
        "input_ids": tokens(4, 11),
        "pixel_values": torch.randn(4, 3, 32, 32),
        "return_loss": True,
    }


def whisper() -> Case:
    config = transformers.WhisperConfig(
        vocab_size=VOCAB,
        d_model=48,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_source_positions=24,
        max_target_positions=16,
        num_mel_bins=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    inputs = {"input_features": torch.randn(2, 8, 48), "labels": tokens(2, 9)}
    return transformers.WhisperForConditionalGeneration(config), inputs


def mamba() -> Case:
    config = transformers.MambaConfig(
        vocab_size=VOCAB, hidden_size=48, state_size=8, num_hidden_layers=2, time_step_rank=4
    )
    return _language_model(transformers.MambaForCausalLM, config)


def deepseek_v3() -> Case:
    config = transformers.DeepseekV3Config(
        **SIZES,
        num_key_value_heads=4,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=32,
        n_shared_experts=1,
        first_k_dense_replace=1,
    )
    return _language_model(transformers.DeepseekV3ForCausalLM, config)


# ---------------------------------------------------------------- our own, in benchmarks/models


class WithLoss(nn.Module):
    """A model with the interface of the others: ``loss`` and ``logits``."""

    def __init__(self, net: nn.Module, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, *, labels: torch.Tensor, **inputs: torch.Tensor) -> Any:
        logits = self.net(**inputs)
        return ImageClassifierOutput(loss=self.loss(logits, labels), logits=logits)


def resnet50() -> Case:
    inputs = {"x": torch.randn(4, 3, 48, 48), "labels": torch.tensor([0, 3, 9, 1])}
    net = ResNet50(classes=10)
    # Residual branches start at zero, as is usual for training it. With all ones it is so
    # ill-conditioned that eager's own float32 gradients are 1 to 3% off those in float64.
    for name, module in net.named_modules():
        if name.endswith("bn3"):
            nn.init.zeros_(module.weight)
    return WithLoss(net, F.cross_entropy), inputs


def unet() -> Case:
    images = torch.randn(2, 3, 16, 16)
    inputs = {
        "images": images,
        "steps": torch.tensor([3, 711]),
        "labels": torch.randn(images.shape),
    }
    return WithLoss(UNet(widths=(16, 24, 32)), F.mse_loss), inputs


def dlrm() -> Case:
    rows = (50, 7, 90)
    bags = torch.stack([torch.randint(0, n, (16, 3)) for n in rows])
    inputs = {"dense": torch.randn(16, 13), "bags": bags, "labels": torch.rand(16).round()}
    net = Dlrm(rows, width=8, bottom=(32,), top=(32, 16))
    return WithLoss(net, F.binary_cross_entropy_with_logits), inputs


def mingpt() -> Case:
    ids = tokens(2, 17)
    net = MinGpt(MinGptConfig(VOCAB, length=32, width=48, layers=2, heads=4, dropout=0.1))
    return WithLoss(net, _next_token_loss), {"tokens": ids, "labels": ids}


def _next_token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


TRANSFORMERS = (
    llama,
    qwen3,
    qwen3_moe,
    gemma3,
    gpt2,
    bert,
    t5,
    vit,
    clip,
    whisper,
    mamba,
    deepseek_v3,
)
OWN = (resnet50, unet, dlrm, mingpt)
MODELS: dict[str, Callable[[], Case]] = {f.__name__: f for f in (*TRANSFORMERS, *OWN)}

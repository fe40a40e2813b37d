"""Small real models with random weights, each with one batch that has labels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "models"))

Case = tuple[nn.Module, dict[str, torch.Tensor]]
SIZES = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def llama() -> Case:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
    ids = torch.randint(0, 199, (2, 17))
    return transformers.LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}


def gpt2() -> Case:
    config = transformers.GPT2Config(
        vocab_size=199,
        n_embd=48,
        n_layer=2,
        n_head=4,
        n_positions=32,
        bos_token_id=1,
        eos_token_id=1,
    )
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # unset, it logs a warning, which ends Dynamo's graph
    ids = torch.randint(0, 199, (2, 17))
    return model, {"input_ids": ids, "labels": ids}


def bert() -> Case:
    config = transformers.BertConfig(**SIZES, max_position_embeddings=32)
    lengths = torch.tensor([[17], [9]])
    return transformers.BertForSequenceClassification(config), {
        "input_ids": torch.randint(0, 199, (2, 17)),
        "attention_mask": (torch.arange(17)[None] < lengths).long(),
        "labels": torch.tensor([0, 1]),
    }


def vit() -> Case:
    sizes = {k: v for k, v in SIZES.items() if k != "vocab_size"}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=5)
    return transformers.ViTForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 32, 32),
        "labels": torch.tensor([0, 3]),
    }


class Classifier(nn.Module):
    """ResNet-50 with the interface of the others."""

    def __init__(self) -> None:
        super().__init__()
        from resnet50 import ResNet50

        self.net = ResNet50(classes=10)
        # Residual branches start at zero, as is usual for training it. With all ones it is so
        # ill-conditioned that eager's own float32 gradients are 1 to 3% off those in float64.
        for name, module in self.net.named_modules():
            if name.endswith("bn3"):
                nn.init.zeros_(module.weight)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.net(images)
        loss = nn.functional.cross_entropy(logits, labels)
        return transformers.modeling_outputs.ImageClassifierOutput(loss=loss, logits=logits)


def resnet50() -> Case:
    inputs = {"images": torch.randn(4, 3, 48, 48), "labels": torch.tensor([0, 3, 9, 1])}
    return Classifier(), inputs


MODELS = {f.__name__: f for f in (llama, gpt2, bert, vit, resnet50)}

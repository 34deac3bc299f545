"""Tiny models whose predictions depend strongly on every token and position before them.

With the small random weights that transformers starts from, all predictions are nearly uniform, and a wrong mask
or position would change them by less than any tolerance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256},
    "llama": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "mistral": {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 24},
    "gemma2": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 200},
    "cohere": {"num_attention_heads": 4, "num_key_value_heads": 2, "logit_scale": 0.3},
    "gemma3_text": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "phi3": {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 24},
    "gpt_oss": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 24,
    },
    "qwen2": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "use_sliding_window": True,
        "max_window_layers": 1,
        "sliding_window": 24,
    },
    "cohere2": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "logit_scale": 0.3,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "llama4_text": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size_mlp": 64,
        "num_local_experts": 2,
        "attention_chunk_size": 24,
        "layer_types": ["chunked_attention", "full_attention"],
    },
    "bloom": {"n_layer": 2, "n_head": 4},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 16},
    "mamba": {"state_size": 8},
}
COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


@pytest.fixture(scope="session")
def tokenizer(tiny_gpt2: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(tiny_gpt2)


def make_model(kind: str, vocab_size: int, seed: int = 0, **options: Any) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**COMMON, "vocab_size": vocab_size, **CONFIGS[kind], **options})
    return AutoModelForCausalLM.from_config(config).eval()

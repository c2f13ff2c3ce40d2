"""Tiny random models of every architecture that the walk over linear layers knows."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": 61, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 64, "eos_token_id": 2}
# Short windows, so that layers with a sliding window are really called with another mask.
OWN: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": 4},
    "gemma3_text": {
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "mistral": {"sliding_window": 4},
}


def tiny(model_type: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A random causal language model, weights large enough that the activations of the inputs differ."""
    sizes = GPT2 if model_type == "gpt2" else SIZES
    config = AutoConfig.for_model(model_type, **{**sizes, **OWN.get(model_type, {}), **changes})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3, generator=generator)
    return model


def tokens(sequences: int = 5, length: int = 12, seed: int = 0) -> torch.Tensor:
    """Token ids [sequences, length]."""
    return torch.randint(3, 61, (sequences, length), generator=torch.Generator().manual_seed(seed))

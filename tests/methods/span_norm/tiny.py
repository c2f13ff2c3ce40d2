"""Small models of every scheme."""

from typing import Any

import torch
from torch import Tensor

from methods.span_norm import SpanNormConfig, SpanNormForCausalLM

VOCABULARY = 64


def config(scheme: str = "span", layers: int = 2, **changes: Any) -> SpanNormConfig:
    values: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 172,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "bos_token_id": None,
        "eos_token_id": None,
        "norm_scheme": scheme,
    }
    return SpanNormConfig(**{**values, **changes})


def model(scheme: str = "span", layers: int = 2, seed: int = 0, **changes: Any) -> SpanNormForCausalLM:
    torch.manual_seed(seed)
    return SpanNormForCausalLM(config(scheme, layers, **changes)).eval()


def with_random_gains(made: SpanNormForCausalLM, seed: int = 1) -> SpanNormForCausalLM:
    """Gains away from 1, so that a norm in the wrong place shows."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in made.named_parameters():
        if parameter.ndim == 1:
            assert "norm" in name
            parameter.data = 1 + 0.3 * torch.randn(parameter.shape, generator=draw).to(parameter.dtype)
    return made


def ids(rows: int = 2, tokens: int = 12, seed: int = 2) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))

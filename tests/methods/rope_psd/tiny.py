"""A random Llama in double precision whose views differ clearly, and ids for it."""

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 61


def model(seed: int = 0, attention: str = "sdpa", **changes: Any) -> LlamaForCausalLM:
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "attn_implementation": attention,
    }
    made = LlamaForCausalLM(LlamaConfig(**(settings | changes))).double()
    torch.set_rng_state(state)
    return made


def ids(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def gradients(made: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}


def largest_difference(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """Largest difference of any gradient, relative to that gradient's largest entry."""
    assert first.keys() == second.keys()
    return max(
        float((first[n] - second[n]).abs().max() / second[n].abs().max().clamp(min=1e-12)) for n in second
    )


def one(value: int) -> Tensor:
    """A split or a gap of one row."""
    return torch.tensor([value])

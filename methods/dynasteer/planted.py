"""The causal positive control: a one-block model, built by hand, in which one head's value along a known direction
sets the probability of a right answer.

An answer has five sentences of a token each: a word that is good or bad, three fillers, and the result. All logits
come from a table of allowed next tokens, plus `strength` times the planted head's state along the planted direction for
good words against bad ones. Attention is uniform, so the state is the mean of the values read so far: noise from the
prompt, and after the word its sign. The result is right where the state is positive, that is, after a good word. A
second head carries noise alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from methods.dynasteer.trajectories import Problem

PROMPT_WORDS, PROMPT_LENGTH, KINDS = 192, 5, 3
GOOD = [f"good_{'abc'[i]}.\n" for i in range(KINDS)]
BAD = [f"bad_{'abc'[i]}.\n" for i in range(KINDS)]
FILLERS = [f"then_{'abc'[i]}.\n" for i in range(3)]
WORDS = ["<pad>", "<eos>", "?", "1", "0", *GOOD, *BAD, *FILLERS, *(f"p{i:03d}" for i in range(PROMPT_WORDS))]
ID = {word: number for number, word in enumerate(WORDS)}
FORBIDDEN = -200.0


@dataclass(frozen=True)
class Planted:
    """The model, its tokenizer, and the truth about it.

    Attributes:
        model, tokenizer: as `DynaSteer` takes them.
        direction: [d] the planted unit direction.
        layer, head: where it is.
    """

    model: Any
    tokenizer: Any
    direction: np.ndarray
    layer: int = 0
    head: int = 0


def planted_problems(count: int, seed: int) -> list[Problem]:
    """Prompts of five random words; the right answer is always 1."""
    rng = np.random.default_rng((seed, 5))
    words = rng.integers(ID["p000"], ID["p000"] + PROMPT_WORDS, (count, PROMPT_LENGTH))
    return [Problem((*(int(word) for word in row), ID["?"]), "1") for row in words]


def make_planted(seed: int = 0, head_dim: int = 32, strength: float = 4.0, sign: float = 7.0) -> Planted:
    """Build the model.

    Args:
        seed: of the direction and of the noise.
        head_dim: width of a head.
        strength: log-odds of a good word for each unit of the state along the direction.
        sign: value of a good word along the direction; a bad one has its negative.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(head_dim)
    direction /= np.linalg.norm(direction)
    size, heads = len(WORDS), 2
    values = np.zeros((size, heads, head_dim))
    prompt = slice(ID["p000"], size)
    # Centred and uncorrelated over the words, and as strong along the planted direction as along others: Fisher's
    # direction cancels noise along the planted one by what other features know of it, as far as chance lets them.
    noise = rng.standard_normal((PROMPT_WORDS, heads * head_dim))
    noise = np.linalg.qr(noise - noise.mean(0))[0] * PROMPT_WORDS**0.5
    noise = noise.reshape(PROMPT_WORDS, heads, head_dim)
    values[prompt] = noise
    for words, way in ((GOOD, 1.0), (BAD, -1.0)):
        for word in words:
            values[ID[word], 0] = way * sign * direction

    block = heads * head_dim
    width = size + 2 * block + 1
    width += width % 2
    radius = 40.0
    embedding = np.zeros((size, width))
    embedding[:, :size] = np.eye(size)
    embedding[:, size : size + block] = values.reshape(size, block)
    # All rows have one length, so that the norms multiply by a constant.
    embedding[:, -1] = np.sqrt(radius**2 - (embedding**2).sum(1))
    read = slice(size + block, size + 2 * block)

    allowed = np.full((size, size), FORBIDDEN)
    for word in (*GOOD, *BAD):
        allowed[ID["?"], ID[word]] = 0.0
        allowed[ID[word], ID[FILLERS[0]]] = 0.0
    for before, after in ((FILLERS[0], FILLERS[1]), (FILLERS[1], FILLERS[2])):
        allowed[ID[before], ID[after]] = 0.0
    for result in ("1", "0"):
        allowed[ID[FILLERS[2]], ID[result]] = 0.0
        allowed[ID[result], ID["<eos>"]] = 0.0
    allowed[prompt, ID["<eos>"]] = allowed[ID["<pad>"], ID["<eos>"]] = allowed[ID["<eos>"], ID["<eos>"]] = 0.0
    head = np.zeros((size, width))
    head[:, :size] = allowed.T
    for words, way in ((GOOD, 0.5), (BAD, -0.5)):
        for word in words:
            head[ID[word], read][:head_dim] = way * strength * direction
    for result, way in (("1", 10.0), ("0", -10.0)):
        head[ID[result], read][:head_dim] = way * direction

    config = LlamaConfig(
        vocab_size=size,
        hidden_size=width,
        intermediate_size=2,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=head_dim,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=ID["<eos>"],
        pad_token_id=ID["<pad>"],
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    layer: Any = model.model.layers[0]
    flat = torch.full((width,), radius / width**0.5)
    select = np.zeros((block, width))
    select[:, size : size + block] = np.eye(block)
    write = np.zeros((width, block))
    write[read] = np.eye(block)
    _put(model.model.embed_tokens, embedding)
    _put(model.lm_head, head)
    _put(layer.self_attn.v_proj, select)
    _put(layer.self_attn.o_proj, write)
    mlp = layer.mlp
    for module in (layer.self_attn.q_proj, layer.self_attn.k_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj):
        module.weight.zero_()
    for norm in (layer.input_layernorm, layer.post_attention_layernorm, model.model.norm):
        norm.weight.copy_(flat)
    model.generation_config.eos_token_id = ID["<eos>"]
    words_only = Tokenizer(models.WordLevel(dict(ID), unk_token="<pad>"))
    words_only.pre_tokenizer = pre_tokenizers.Split(" ", behavior="removed")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words_only, pad_token="<pad>", eos_token="<eos>", clean_up_tokenization_spaces=False
    )
    return Planted(model, tokenizer, direction)


def _put(module: Any, weight: np.ndarray) -> None:
    module.weight.copy_(torch.from_numpy(weight).to(module.weight.dtype))

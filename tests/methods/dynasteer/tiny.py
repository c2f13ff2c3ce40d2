"""Random models with the words of the small world, in float64, and a reference decoder without a cache."""

from typing import Any

import numpy as np
import torch

from methods.dynasteer.decoding import Policy
from methods.dynasteer.edits import HeadDirections, HeadEdit
from methods.dynasteer.heads import HeadActivations, head_layout
from methods.dynasteer.sampling import GenConfig, choose, token_entropy, uniforms
from methods.dynasteer.world import ID, STOP, VOCABULARY, make_tokenizer

TOKENIZER = make_tokenizer()
KINDS = ("llama", "gpt2", "qwen3")


def tiny_model(kind: str, seed: int = 0) -> Any:
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    shared = {
        "vocab_size": len(VOCABULARY),
        "bos_token_id": None,
        "eos_token_id": ID["<eos>"],
        "pad_token_id": 0,
    }
    wide = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "attn_implementation": "eager",
    }
    torch.manual_seed(seed)
    model: Any
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**shared, **wide))
    elif kind == "qwen3":  # heads wider than hidden / heads
        model = Qwen3ForCausalLM(Qwen3Config(**shared, **wide, head_dim=16))
    else:
        small = {"n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}
        model = GPT2LMHeadModel(GPT2Config(**shared, **small, attn_implementation="eager"))
    # Ends of sentences and of answers come often enough, and not at once.
    model.generation_config.eos_token_id = ID["<eos>"]
    return model.double().eval().requires_grad_(False)


def prompts(count: int, seed: int = 0, longest: int = 9) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, len(VOCABULARY), rng.integers(1, longest)).tolist() for _ in range(count)]


def random_edit(model: Any, alpha: float = 4.0, heads: int = 3, patterns: int = 2, seed: int = 0) -> HeadEdit:
    layout = head_layout(model)
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((heads, patterns, layout.head_dim))
    w = torch.from_numpy(w / np.linalg.norm(w, axis=-1, keepdims=True))
    size = (heads, patterns)
    return HeadEdit(
        HeadDirections(
            layers=torch.tensor([0, 1, 1, 0][:heads]),
            heads=torch.tensor([1, 0, 3, 2][:heads]),
            w=w,
            mu=torch.from_numpy(rng.normal(0.5, 0.5, size)),
            sigma=torch.from_numpy(rng.uniform(0.1, 1.0, size)),
            kept=torch.ones(size, dtype=torch.bool),
            push=w,
        ),
        alpha,
    )


def activations(
    z: np.ndarray, labels: np.ndarray, groups: np.ndarray, problems: Any = None
) -> HeadActivations:
    n = len(z)
    return HeadActivations(
        torch.from_numpy(z).float(),
        labels,
        groups,
        groups if problems is None else problems,
        np.ones(n, int),
        np.zeros(n),
    )


def forward(model: Any, ids: list[int], policy: Policy, edited: set[int]) -> torch.Tensor:
    """Logits after the last token, everything computed anew, with the edit at the named positions."""
    layout = head_layout(model)
    handles = []
    if policy.edit is not None and edited:
        edit: Any = policy.edit
        for layer in {int(x) for x in edit.directions.layers}:
            which = (edit.directions.layers == layer).nonzero()[:, 0]
            places = edit.directions.heads[which]

            def hook(_m: Any, args: Any, which: Any = which, places: Any = places) -> Any:
                z = args[0].clone().unflatten(-1, (layout.n_heads, -1))
                for position in edited:
                    z[0, position, places] = edit.edited(z[0, position, places], which)
                return (z.flatten(-2),)

            handles.append(layout.projections[layer].register_forward_pre_hook(hook))
    out = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    for handle in handles:
        handle.remove()
    return out


def reference(
    model: Any, prompt: list[int], config: GenConfig, policy: Policy, key: int
) -> tuple[list[int], int]:
    """Algorithm 1 word by word: (accepted tokens, discarded tokens)."""
    numbers = uniforms(config.seed, key, config.max_new_tokens)
    accepted: list[int] = []
    discarded, number, edited = 0, 1, set[int]()
    steer_next = False
    while True:
        steer, attempt = steer_next, 0
        steer_next = False
        while True:
            here = set(edited)
            sentence: list[int] = []
            entropies = []
            while True:
                ids = prompt + accepted + sentence
                if policy.scope == "always" or (steer and (policy.scope == "sentence" or not sentence)):
                    here.add(len(ids) - 1)
                logits = forward(model, ids, policy, here)
                u = torch.tensor([numbers[attempt, len(accepted) + len(sentence)]])
                entropies.append(float(token_entropy(logits)))
                sentence.append(int(choose(logits[None], u, config)[0]))
                full = len(accepted) + len(sentence) >= config.max_new_tokens
                ended = sentence[-1] == ID["<eos>"]
                if ended or full or sentence[-1] == ID[STOP] or len(sentence) >= config.max_sentence_tokens:
                    break
            if attempt == 0 and policy.opens(float(np.mean(entropies)), number):
                if policy.rollback:
                    discarded += len(sentence)
                    steer, attempt = True, 1
                    continue
                steer_next = True
            break
        accepted += sentence
        edited = edited if policy.restore else here
        number += 1
        if ended or full:
            return accepted, discarded

"""The study's models and trainings: a small RoPE model from scratch, adapted to twice its length by each method.

Running text (real) with a few facts strewn in; a fact that comes again can be known from its first place. The base
reads short rows in which facts stand anywhere. The adaptation reads rows twice as long: most are text alone, a tenth
ask for a fact that nearly always stands near the end (Beta(5, 1) of the depth), for all methods alike. Then every
depth is asked for.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from methods.common.schedules import warm_flat_decay
from methods.rope_psd.extend import set_rope
from methods.rope_psd.loss import RopePSDLoss
from methods.rope_psd.pose import pose_rows
from methods.rope_psd.positions import evaluate_positions, view_gap
from methods.rope_psd.ruler import FACT, Material, make_prompt
from methods.rope_psd.ruler_words import ADJECTIVES, NOUNS

SKEW = (5.0, 1.0)  # Beta distribution of the evidence's depth in the adaptation's questions
ASKED = 0.1  # share of the adaptation's rows that ask


@dataclass(frozen=True)
class Sizes:
    """How large models and trainings are.

    Attributes:
        layers, width, heads, ffn: of the model.
        context: tokens of the base's rows; the adaptation's rows have twice as many.
        batch: rows of the base a step; the adaptation has half as many.
        base_steps, steps: optimiser steps of the base and of an adaptation.
        base_rate, rate: their peak learning rates.
        depths, prompts: of the evaluation, samples at each depth.
        held_out: rows for losses and view gaps.
    """

    layers: int = 3
    width: int = 64
    heads: int = 4
    ffn: int = 172
    context: int = 128
    batch: int = 16
    base_steps: int = 600
    steps: int = 100
    base_rate: float = 4e-3
    rate: float = 5e-4
    depths: int = 9
    prompts: int = 40
    held_out: int = 32

    @property
    def target(self) -> int:
        return 2 * self.context


@dataclass
class Text:
    """A corpus in memory.

    Attributes:
        tokenizer: of transformers.
        train, held_out: (rows, target) token ids; rows follow each other in the text.
        train_sentences, held_out_sentences: the same parts as sentences.
    """

    tokenizer: Any
    train: Tensor
    held_out: Tensor
    train_sentences: Sequence[str]
    held_out_sentences: Sequence[str]


# How a candidate is trained: arguments of the loss, further ones, and how many times the steps.
CANDIDATES: dict[str, dict[str, Any]] = {
    "clm": {"loss": {"kl_weight": 0.0, "mode": "none"}},
    "clm_longer": {"loss": {"kl_weight": 0.0, "mode": "none"}, "times": 1.6},
    "longce": {"loss": {"kl_weight": 0.0, "mode": "none", "loss_variant": "longce"}},
    "pose": {"loss": {"kl_weight": 0.0, "clm_view": "perturbed"}},
    "pose_rows": {"loss": {"kl_weight": 0.0, "mode": "none"}, "pose_rows": True},
    "psd_skip": {"loss": {}},
    "psd_cyclic": {"loss": {"mode": "cyclic"}},
    "psd_longce": {"loss": {"loss_variant": "longce"}},
    "nope_view": {"loss": {"mode": "nope"}},
    "chunk_view": {"loss": {"mode": "chunks"}},
    "forward_kl": {"loss": {"direction": "forward"}},
} | {
    f"psd_skip/lambda{weight:g}/Y{skip:g}": {"loss": {"kl_weight": weight, "max_skip": skip}}
    for weight in (0.25, 0.5, 1.0, 2.0)
    for skip in (0.25, 1.0, 4.0)
}


def small_llama(text: Text, sizes: Sizes, seed: int) -> Any:
    """An untrained Llama for the text's tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(text.tokenizer),
            hidden_size=sizes.width,
            intermediate_size=sizes.ffn,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.heads,
            max_position_embeddings=sizes.context,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    )


def _row(tokens: list[int], length: int) -> tuple[list[int], list[int]]:
    """Tokens and mask, cut or padded on the right."""
    kept = tokens[:length]
    return kept + [0] * (length - len(kept)), [1] * len(kept) + [0] * (length - len(kept))


def repeated_facts(text: Text, rng: random.Random, length: int) -> list[int]:
    """Running text with facts that each come twice, at random places."""
    start = rng.randrange(len(text.train_sentences) - 40)
    units = list(text.train_sentences[start : start + max(1, length // 64)])
    for key in rng.sample(NOUNS, max(2, length // 24)):
        fact = FACT.format(key=key, value=rng.choice(ADJECTIVES))
        for _ in range(2):
            units.insert(rng.randint(0, len(units)), fact)
    tokens: list[int] = text.tokenizer(" ".join(units), add_special_tokens=False)["input_ids"]
    return tokens


def question(text: Text, rng: random.Random, length: int) -> list[int]:
    """A question whose evidence nearly always stands near the end, with its answer."""
    depth = rng.betavariate(*SKEW)
    material = Material(text.train_sentences, words=NOUNS)
    size = max(1, length // 34)
    while True:
        prompt = make_prompt("recall", size, rng, depth, material)
        tokens: list[int] = text.tokenizer(f"{prompt.joined} {prompt.answers[0]}.", add_special_tokens=False)[
            "input_ids"
        ]
        if len(tokens) <= length or size == 1:
            return tokens
        size -= 1


def batches(
    text: Text, sizes: Sizes, seed: int, steps: int, base: bool, by_pose: bool = False
) -> list[dict[str, Tensor]]:
    """The rows of each step; the same for every candidate of a seed, whatever its loss."""
    rng = random.Random(f"{seed}|{'base' if base else 'adapt'}")
    length = sizes.context if base else sizes.target
    rows = sizes.batch if base else sizes.batch // 2
    generator = torch.Generator().manual_seed(seed)
    flat = text.train.flatten()
    found = []
    for _ in range(steps):
        ids, masks, places = [], [], []
        for _ in range(rows):
            asks = rng.random() < (0.75 if base else ASKED)
            start = rng.randrange(len(flat) - 4 * length)
            place = torch.arange(length)
            if asks:
                made = repeated_facts(text, rng, length) if base else question(text, rng, length)
                row, mask = _row(made, length)
            elif by_pose:
                cut, place = pose_rows(flat[start : start + 2 * length], length, 2 * length, generator)
                row, mask = cut.tolist(), [1] * length
            else:
                row, mask = flat[start : start + length].tolist(), [1] * length
            ids.append(row)
            masks.append(mask)
            places.append(place)
        batch = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(masks)}
        found.append(batch | ({"position_ids": torch.stack(places)} if by_pose else {}))
    return found


def train(
    model: nn.Module,
    loss: RopePSDLoss,
    rows: Sequence[dict[str, Tensor]],
    rate: float,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> list[dict[str, float]]:
    """Plain AdamW over the rows, a step each, clipped at 1. Returns step, clm, kl and the gradient's norm by step."""
    steps = len(rows)
    optimiser = AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = LambdaLR(optimiser, warm_flat_decay(steps, max(1, steps // 10), max(1, steps // 2)))
    model.train()
    curve = []
    for step, batch in enumerate(rows, 1):
        told = loss(
            model, batch["input_ids"], batch["attention_mask"], position_ids=batch.get("position_ids")
        )
        optimiser.zero_grad()
        told["loss"].backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        row = {
            "step": float(step),
            "clm": float(told["clm"]),
            "kl": float(told["kl"]),
            "grad_norm": float(norm),
        }
        curve.append(row)
        if on_step is not None:
            on_step(step, row)
    return curve


def train_base(text: Text, sizes: Sizes, seed: int) -> tuple[Any, list[dict[str, float]]]:
    """The base of a seed and its curve."""
    model = small_llama(text, sizes, seed)
    rows = batches(text, sizes, seed, sizes.base_steps, base=True)
    curve = train(model, RopePSDLoss(kl_weight=0.0, mode="none"), rows, sizes.base_rate)
    return model, curve


def adapt(
    base: Any, text: Text, sizes: Sizes, candidate: str, seed: int
) -> tuple[Any, list[dict[str, float]]]:
    """A copy of the base, trained on the longer rows by one method."""
    chosen = CANDIDATES[candidate]
    model = copy.deepcopy(base)
    set_rope(model, theta=5e4, window=sizes.target)
    steps = round(sizes.steps * chosen.get("times", 1.0))
    rows = batches(text, sizes, seed, steps, base=False, by_pose=chosen.get("pose_rows", False))
    short = sizes.context // 2
    loss = RopePSDLoss(
        **{"seed": seed, "long_ce_context": short, "long_ce_stride": short // 2, **chosen["loss"]}
    )
    return model, train(model, loss, rows, sizes.rate)


def measure(model: Any, text: Text, sizes: Sizes) -> dict[str, Any]:
    """What every candidate is measured by, under standard indices: losses, view gaps, and answers by depth."""
    rows = text.held_out[np.linspace(0, len(text.held_out) - 1, sizes.held_out).round().astype(int)]
    target = sizes.target
    gaps = view_gap(model, rows, [target // 4, target, 4 * target])
    short = view_gap(model, rows[:, : sizes.context // 2], [1])[0]["standard_ce"]
    answers = {"1": answers_by_depth(model, text, sizes, target)}
    longer = copy.deepcopy(model)
    set_rope(longer, yarn_factor=2.0, window=target)
    answers["2"] = answers_by_depth(longer, text, sizes, 2 * target)
    return {"gaps": gaps, "ce": gaps[0]["standard_ce"], "short_ce": short, "answers": answers}


def answers_by_depth(model: Any, text: Text, sizes: Sizes, length: int) -> dict[str, Any]:
    """Right or wrong of each prompt (depths x samples) and the mean log-probability at each depth."""
    depths = [i / (sizes.depths - 1) for i in range(sizes.depths)]
    material = Material(text.held_out_sentences, words=NOUNS)
    frame = evaluate_positions(
        model,
        text.tokenizer,
        "recall",
        length,
        depths,
        sizes.prompts,
        seed=1,
        material=material,
        decode=False,
        batch_tokens=16_384,
    )
    table = frame.pivot(index="depth", columns="sample", values="correct")
    return {
        "length": length,
        "depths": depths,
        "correct": table.to_numpy().tolist(),
        "logprob": frame.groupby("depth").logprob.mean().tolist(),
    }

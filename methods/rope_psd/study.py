"""The study's models and trainings: a small RoPE model from scratch, adapted to twice its length by each method.

The base first learns to copy (random tokens that come again), then reads short rows of real text in which facts stand
twice, anywhere. The adaptation reads rows twice as long: most are text alone, a tenth ask for a fact that nearly
always stands near the end (Beta(5, 1) of the depth), for all methods alike. Then facts at every depth are asked for.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from methods.common.dtype import fast_dtype
from methods.common.schedules import warm_flat_decay
from methods.rope_psd.extend import set_rope
from methods.rope_psd.loss import RopePSDLoss
from methods.rope_psd.pose import pose_rows
from methods.rope_psd.positions import evaluate_positions, view_gap
from methods.rope_psd.ruler import FACT, Material, make_prompt
from methods.rope_psd.ruler_words import ADJECTIVES, NOUNS

SKEW = (5.0, 1.0)  # Beta distribution of the evidence's depth in the adaptation's questions
ASKED = 0.1  # share of the adaptation's rows that ask
GRID_WEIGHTS, GRID_SKIPS = (0.25, 0.5, 1.0, 2.0), (0.25, 1.0, 4.0)
GAPS = (0.25, 1.0, 4.0)  # of the target length
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """How large models and trainings are.

    Attributes:
        layers, width, heads, ffn: of the model.
        context: tokens of the base's rows; the adaptation's rows have twice as many.
        batch: rows of the base a step; the adaptation has a quarter of them.
        copy_steps, base_steps, steps: optimiser steps of copying, of the base on text, of an adaptation.
        base_rate, rate: peak learning rates of the base and of an adaptation.
        theta: rotary base of the adaptation (ABF); the model's is 10,000.
        depths, prompts: of the evaluation, samples at each depth.
        held_out: rows for losses and view gaps.
    """

    layers: int = 2
    width: int = 64
    heads: int = 2
    ffn: int = 172
    context: int = 64
    batch: int = 32
    copy_steps: int = 600
    base_steps: int = 400
    steps: int = 80
    base_rate: float = 5e-3
    rate: float = 1e-3
    theta: float = 2e4
    depths: int = 9
    prompts: int = 40
    held_out: int = 64

    @property
    def target(self) -> int:
        return 2 * self.context


@dataclass
class Text:
    """A corpus in memory.

    Attributes:
        tokenizer: of transformers.
        train, held_out: (rows, target) token ids; rows follow each other in the text.
        train_clauses, held_out_clauses: the same parts as pieces between commas and stops.
    """

    tokenizer: Any
    train: Tensor
    held_out: Tensor
    train_clauses: Sequence[str]
    held_out_clauses: Sequence[str]


def split_clauses(text: str) -> list[str]:
    """Pieces of text between commas and stops: short, so that evidence has many places to stand."""
    return [part for part in re.split(r"(?<=[.,!?:;])\s+", re.sub(r"\s+", " ", text)) if part]


# How a candidate is trained: arguments of the loss, further ones, and how many times the steps.
_NAMED: dict[str, dict[str, Any]] = {
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
}
CANDIDATES: dict[str, dict[str, Any]] = _NAMED | {
    f"psd_skip/lambda{weight:g}/Y{skip:g}": {"loss": {"kl_weight": weight, "max_skip": skip}}
    for weight in GRID_WEIGHTS
    for skip in GRID_SKIPS
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


def copied(rng: random.Random, generator: torch.Generator, length: int, vocabulary: int) -> list[int]:
    """Random tokens that come again and again: what teaches a model to look something up in its context."""
    period = rng.randint(6, length // 2)
    once: list[int] = torch.randint(0, vocabulary, (period,), generator=generator).tolist()
    return (once * (length // period + 1))[:length]


def repeated_facts(text: Text, rng: random.Random, length: int) -> list[int]:
    """Running text with facts that each come twice, at random places."""
    count = max(1, length // 32)
    start = rng.randrange(len(text.train_clauses) - count)
    units = list(text.train_clauses[start : start + count])
    for key in rng.sample(NOUNS, max(2, length // 13)):
        fact = FACT.format(key=key, value=rng.choice(ADJECTIVES))
        for _ in range(2):
            units.insert(rng.randint(0, len(units)), fact)
    tokens: list[int] = text.tokenizer(" ".join(units), add_special_tokens=False, verbose=False)["input_ids"]
    return tokens


def question(text: Text, rng: random.Random, length: int) -> list[int]:
    """A question whose evidence nearly always stands near the end, with its answer."""
    depth = rng.betavariate(*SKEW)
    material = Material(text.train_clauses, words=NOUNS)
    size = max(1, length // 14)
    while True:
        prompt = make_prompt("recall", size, rng, depth, material)
        words = f"{prompt.joined} {prompt.answers[0]}."
        tokens: list[int] = text.tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"]
        if len(tokens) <= length or size == 1:
            return tokens
        size -= 1


def base_batches(text: Text, sizes: Sizes, seed: int) -> list[Batch]:
    """The rows of the base: copying first, then copying, facts and text in the shares 1 : 2 : 1."""
    rng, generator = random.Random(f"{seed}|base"), torch.Generator().manual_seed(seed)
    flat, length = text.train.flatten().tolist(), sizes.context
    found = []
    for step in range(sizes.copy_steps + sizes.base_steps):
        rows = []
        for _ in range(sizes.batch):
            kind = rng.random() if step >= sizes.copy_steps else 0.0
            if kind < 0.25:
                rows.append(copied(rng, generator, length, len(text.tokenizer)))
                continue
            made = repeated_facts(text, rng, length)[:length] if kind < 0.75 else []
            start = rng.randrange(len(flat) - length)
            rows.append(made + flat[start : start + length - len(made)])
        found.append({"input_ids": torch.tensor(rows)})
    return found


def adapt_batches(text: Text, sizes: Sizes, seed: int, steps: int, by_pose: bool = False) -> list[Batch]:
    """The rows of an adaptation; the same for every candidate of a seed, whatever its loss."""
    rng, generator = random.Random(f"{seed}|adapt"), torch.Generator().manual_seed(seed)
    flat, length = text.train.flatten(), sizes.target
    found = []
    for _ in range(steps):
        ids, masks, places = [], [], []
        for _ in range(max(1, sizes.batch // 4)):
            asks, start = rng.random() < ASKED, rng.randrange(len(flat) - 2 * length)
            row, place = flat[start : start + length], torch.arange(length)
            used = length
            if asks:
                made = question(text, rng, length)[:length]
                used = len(made)
                row = torch.tensor(made + [0] * (length - used))
            elif by_pose:
                row, place = pose_rows(flat[start : start + 2 * length], length, 2 * length, generator)
            ids.append(row)
            masks.append(torch.tensor([1] * used + [0] * (length - used)))
            places.append(place)
        batch = {"input_ids": torch.stack(ids), "attention_mask": torch.stack(masks)}
        found.append(batch | ({"position_ids": torch.stack(places)} if by_pose else {}))
    return found


def train(
    model: nn.Module, loss: RopePSDLoss, rows: Sequence[Batch], rate: float, half: bool = False
) -> list[dict[str, float]]:
    """Plain AdamW over the rows, a step each, clipped at 1; step, clm, kl and the gradient's norm by step.

    `half` computes in bfloat16; weights and the divergence stay float32.
    """
    steps = len(rows)
    optimiser = AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    schedule = LambdaLR(optimiser, warm_flat_decay(steps, max(1, min(30, steps // 10)), max(1, steps // 4)))
    model.train()
    curve = []
    for step, batch in enumerate(rows, 1):
        ids, mask, places = (batch.get(name) for name in ("input_ids", "attention_mask", "position_ids"))
        assert ids is not None
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=half):
            told = loss(model, ids, mask, position_ids=places)
        optimiser.zero_grad()
        told["loss"].backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        curve.append(
            {"step": step, "clm": float(told["clm"]), "kl": float(told["kl"]), "grad_norm": float(norm)}
        )
    return curve


def train_base(text: Text, sizes: Sizes, seed: int) -> tuple[Any, list[dict[str, float]]]:
    """The base of a seed and its curve."""
    model = small_llama(text, sizes, seed)
    loss = RopePSDLoss(kl_weight=0.0, mode="none")
    return model, train(model, loss, base_batches(text, sizes, seed), sizes.base_rate)


def candidate_loss(candidate: str, target: int, seed: int) -> RopePSDLoss:
    """The loss of a candidate; LongCE's short context is a quarter of the target length."""
    short = max(2, target // 4)
    settings = {"seed": seed, "long_ce_context": short, "long_ce_stride": max(1, short // 4)}
    return RopePSDLoss(**{**settings, **CANDIDATES[candidate]["loss"]})


def adapt(
    base: Any, text: Text, sizes: Sizes, candidate: str, seed: int
) -> tuple[Any, list[dict[str, float]]]:
    """A copy of the base, trained on the longer rows by one method."""
    chosen = CANDIDATES[candidate]
    model = copy.deepcopy(base)
    set_rope(model, theta=sizes.theta, window=sizes.target)
    steps = round(sizes.steps * chosen.get("times", 1.0))
    rows = adapt_batches(text, sizes, seed, steps, chosen.get("pose_rows", False))
    return model, train(model, candidate_loss(candidate, sizes.target, seed), rows, sizes.rate)


def spread_rows(rows: Tensor, count: int) -> Tensor:
    """`count` rows, evenly over all."""
    return rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int)]


def measure(model: Any, text: Text, sizes: Sizes) -> dict[str, Any]:
    """What every candidate is measured by, under standard indices: losses, view gaps, and answers by depth."""
    rows, target = spread_rows(text.held_out, sizes.held_out), sizes.target
    gaps = view_gap(model, rows, [round(gap * target) for gap in GAPS], batch=32)
    short = view_gap(model, rows[:, : sizes.context // 2], [1], batch=32)[0]["standard_ce"]
    found = {"gaps": gaps, "ce": gaps[0]["standard_ce"], "short_ce": short}
    longer = copy.deepcopy(model)
    set_rope(longer, yarn_factor=2.0, window=target)
    return found | {
        "answers": answers_by_depth(model, text, sizes, target),
        "answers_beyond": answers_by_depth(longer, text, sizes, 2 * target),
    }


def answers_by_depth(model: Any, text: Text, sizes: Sizes, length: int) -> dict[str, Any]:
    """Right or wrong of each prompt (depths x samples) and the mean log-probability at each depth."""
    depths = [i / (sizes.depths - 1) for i in range(sizes.depths)]
    material = Material(text.held_out_clauses, words=NOUNS)
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


def adapt_real(
    model: Any, train_rows: Tensor, held_out: Tensor, candidate: str, seed: int, steps: int, rate: float
) -> dict[str, Any]:
    """A given model, trained in place on rows of its own tokens: view gaps and losses, without questions."""
    rng = np.random.default_rng((seed, 7))
    order = rng.permutation(len(train_rows) - 1)
    length = train_rows.shape[1]
    generator = torch.Generator().manual_seed(seed)
    rows: list[Batch] = []
    for step in range(round(steps * CANDIDATES[candidate].get("times", 1.0))):
        place = int(order[step % len(order)])
        batch = {"input_ids": train_rows[place : place + 1]}
        if CANDIDATES[candidate].get("pose_rows"):
            two = train_rows[place : place + 2].flatten()
            ids, places = pose_rows(two, length, 2 * length, generator)
            batch = {"input_ids": ids[None], "position_ids": places[None]}
        rows.append(batch)
    half = fast_dtype(model.device) == torch.bfloat16
    curve = train(model, candidate_loss(candidate, length, seed), rows, rate, half)
    gaps = view_gap(model, held_out, [length, 4 * length], batch=4)
    return {"curve": curve, "gaps": gaps, "ce": gaps[0]["standard_ce"]}

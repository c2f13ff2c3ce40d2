"""Accuracy by the evidence's depth, and how far the model's predictions depend on the indices."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError
from methods.common.open_text import open_tokens
from methods.common.packed_scoring import packed_loglikelihoods, unwrapped
from methods.rope_psd.loss import RopePSDLoss
from methods.rope_psd.ruler import SPREAD_TASKS, Material, Prompt, check_task, largest_size, make_prompt

if TYPE_CHECKING:
    import pandas as pd

DEPTHS = tuple(i / 8 for i in range(9))
SHRINK = 0.95


def make_prompts(
    tokenizer: Any,
    task: str,
    length: int,
    depths: Sequence[float] = DEPTHS,
    n: int = 40,
    seed: int = 0,
    *,
    material: Material | None = None,
    chat: bool = False,
) -> list[tuple[float, int, Prompt, list[int]]]:
    """The prompts of a grid: (depth, sample, prompt, tokens), the same for every model with this tokenizer.

    A sample has the same keys, values and haystack at every depth: only the evidence moves. Every sequence, answer
    included, has at most `length` tokens.

    Args:
        tokenizer: of transformers.
        task: a name of `TASKS`; those without a depth (vt, cwe, fwe) are asked once a sample with depth nan.
        length: tokens of prompt and answer.
        depths: 0 (start) to 1 (end).
        n: samples at each depth.
        seed: of every draw.
        material: text for essays and questions.
        chat: put the prompt into the tokenizer's chat template; scores differ by some points.

    Raises:
        ConfigError: unknown task, no depths, a depth outside 0 .. 1, n below 1.
        DataError: no prompt fits, or the material is missing.
    """
    check_task(task)
    if n < 1 or not depths:
        raise ConfigError(f"n={n}, depths={tuple(depths)}: give at least one sample and one depth")
    given = material or Material()

    def tokens_of(prompt: Prompt) -> list[int]:
        if not chat:
            return open_tokens(tokenizer, prompt.joined)
        turn = [{"role": "user", "content": prompt.text}]
        start = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(start + prompt.prefix, add_special_tokens=False)["input_ids"])

    def count(text: str) -> int:
        return len(tokenizer(text)["input_ids"]) + (32 if chat else 0)

    size = largest_size(task, length, count, given)
    grid = (float("nan"),) if task in SPREAD_TASKS else tuple(depths)
    found = []
    for sample in range(n):
        used = size
        while True:
            made = []
            for depth in grid:
                rng = random.Random(f"{seed}|{task}|{length}|{sample}")
                prompt = make_prompt(task, used, rng, None if task in SPREAD_TASKS else depth, given)
                made.append((depth, sample, prompt, tokens_of(prompt)))
            longest = max(len(t) + len(answer_tokens(tokenizer, p)) for _, _, p, t in made)
            if longest <= length or used <= 1:
                break
            used = min(used - 1, int(used * SHRINK))
        found += made
    return found


def answer_tokens(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Tokens of the answer as it follows the prompt."""
    answers = prompt.answers[:1] if prompt.any_counts else prompt.answers
    tokens: list[int] = tokenizer(" " + ", ".join(answers), add_special_tokens=False)["input_ids"]
    return tokens


def score_text(prompt: Prompt, text: str) -> float:
    """Share of the answers that the text contains, whatever its case; RULER's scoring."""
    hits = [answer.lower() in text.lower() for answer in prompt.answers]
    return float(any(hits)) if prompt.any_counts else sum(hits) / len(hits)


def evaluate_positions(
    model: nn.Module,
    tokenizer: Any,
    task: str,
    length: int,
    depths: Sequence[float] = DEPTHS,
    n: int = 40,
    seed: int = 0,
    *,
    material: Material | None = None,
    chat: bool = False,
    decode: bool = True,
    batch_tokens: int = 8192,
) -> pd.DataFrame:
    """Ask for evidence at each depth, under standard indices.

    Args:
        model: a transformers causal language model.
        tokenizer, task, length, depths, n, seed, material, chat: as `make_prompts`.
        decode: score what the model writes, as RULER does. False: right means that greedy decoding gives the whole
            answer at once, which needs no decoding and is never more than what decoding finds.
        batch_tokens: rows x length of a forward pass.

    Returns:
        a row a question: task, length, depth, sample, tokens, correct (0 .. 1), logprob (nats, of the answer).
    """
    import pandas as pd

    prompts = make_prompts(tokenizer, task, length, depths, n, seed, material=material, chat=chat)
    answers = [answer_tokens(tokenizer, prompt) for _, _, prompt, _ in prompts]
    requests = [(None, tokens, answer) for (*_, tokens), answer in zip(prompts, answers, strict=True)]
    inner = unwrapped(model)
    was_training = inner.training
    inner.eval()
    try:
        scores = packed_loglikelihoods(inner, requests, max_length=length, batch_tokens=batch_tokens)
        correct = [float(greedy) for _, greedy in scores]
        if decode:
            open_ones = [i for i, right in enumerate(correct) if not right]
            texts = _write(
                inner, tokenizer, [(prompts[i][3], len(answers[i])) for i in open_ones], batch_tokens
            )
            for i, text in zip(open_ones, texts, strict=True):
                correct[i] = score_text(prompts[i][2], text)
    finally:
        inner.train(was_training)
    return pd.DataFrame(
        {
            "task": task,
            "length": length,
            "depth": [depth for depth, *_ in prompts],
            "sample": [sample for _, sample, *_ in prompts],
            "tokens": [len(tokens) for *_, tokens in prompts],
            "correct": correct,
            "logprob": [score for score, _ in scores],
        }
    )


@torch.no_grad()
def _write(
    model: Any, tokenizer: Any, prompts: Sequence[tuple[list[int], int]], batch_tokens: int
) -> list[str]:
    """Greedy continuations, a little longer than the answer."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i][0]))
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0
    texts = [""] * len(prompts)
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop - start + 1) * len(prompts[order[stop]][0]) <= batch_tokens:
            stop += 1
        part = order[start:stop]
        longest = max(len(prompts[i][0]) for i in part)
        ids = torch.tensor([[pad] * (longest - len(prompts[i][0])) + prompts[i][0] for i in part])
        mask = torch.tensor([[0] * (longest - len(prompts[i][0])) + [1] * len(prompts[i][0]) for i in part])
        out = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=max(prompts[i][1] for i in part) + 8,
            do_sample=False,
            pad_token_id=pad,
        )
        for i, row in zip(part, out[:, longest:], strict=True):
            texts[i] = tokenizer.decode(row, skip_special_tokens=True)
        start = stop
    return texts


def position_report(frame: pd.DataFrame) -> pd.DataFrame:
    """What depth does to accuracy, for each task and length.

    Args:
        frame: from `evaluate_positions`, several of them below each other.

    Returns:
        a row each: task, length, mean, std (over depths, n - 1 below the line), spread (highest - lowest depth), worst
        (lowest depth's accuracy), worst_depth, logprob.
    """
    import pandas as pd

    rows = []
    for (task, length), group in frame.groupby(["task", "length"], sort=False):
        by_depth = group.groupby("depth", dropna=False).correct.mean()
        rows.append(
            {
                "task": task,
                "length": length,
                "mean": float(group.correct.mean()),
                "std": float(by_depth.std(ddof=1)) if len(by_depth) > 1 else 0.0,
                "spread": float(by_depth.max() - by_depth.min()),
                "worst": float(by_depth.min()),
                "worst_depth": float(by_depth.index[int(by_depth.to_numpy().argmin())]),
                "logprob": float(group.logprob.mean()),
            }
        )
    return pd.DataFrame(rows)


@torch.no_grad()
def view_gap(
    model: nn.Module, rows: Tensor, gaps: Sequence[int], split: float = 0.5, batch: int = 8
) -> list[dict[str, float]]:
    """How much the predictions of the suffix change when it is moved away from the prefix.

    Args:
        model: a RoPE causal language model.
        rows: (n, length) token ids.
        gaps: y, in tokens.
        split: s as a share of the length.
        batch: rows at a time.

    Returns:
        for each gap: `gap`, `kl` (nats a token, mean over rows), `standard_ce` (all of the row), `perturbed_ce` (the
        suffix, read with the gap).
    """
    loss = RopePSDLoss()
    inner = unwrapped(model)
    was_training = inner.training
    inner.eval()
    found = []
    try:
        for gap in gaps:
            totals = dict.fromkeys(("kl", "clm", "perturbed_ce"), 0.0)
            for part in rows.to(inner.device).split(batch):
                s = torch.full((len(part),), int(split * part.shape[1]))
                told = loss(model, part, perturbation=(s, torch.full_like(s, gap)))
                for name in totals:
                    totals[name] += float(told[name]) * len(part)
            mean = {name: value / len(rows) for name, value in totals.items()}
            found.append(
                {
                    "gap": gap,
                    "kl": mean["kl"],
                    "standard_ce": mean["clm"],
                    "perturbed_ce": mean["perturbed_ce"],
                }
            )
    finally:
        inner.train(was_training)
    return found

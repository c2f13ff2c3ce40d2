"""A world in which truth is known: arithmetic modulo 13, solved step by step by three hidden solvers.

A problem is a start value and five operations, each one of `add` (5), `less` (3) and `twice`. The careful solver is
always right; A is off by one in sums and differences, B leaves a value as it is instead of doubling it. Each has
words of its own, so a model that is trained on the mixture carries a belief about who is writing, which is a feature
of truth, and two distinct patterns of error. It forks early: the first sentence already says something about the
solver.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from methods.dynasteer.trajectories import Problem

MODULUS, STEPS = 13, 5
OPERATIONS = ("add", "less", "twice")
OPENINGS = ("check", "go")
CONNECTIVES = ("so", "then", "thus", "next")
STOP = ".\n"
VOCABULARY = ("<pad>", "<eos>", ":", STOP, *OPENINGS, *CONNECTIVES, *OPERATIONS, *map(str, range(MODULUS)))
ID = {token: number for number, token in enumerate(VOCABULARY)}
NUMBER = ID["0"]
PROMPT_TOKENS = 2 + STEPS

# careful, A, B: how often each writes, opens with "check", and which connectives it likes.
SHARES = (0.4, 0.3, 0.3)
CHECKS = (0.75, 0.35, 0.35)
LIKES = ((0.55, 0.25, 0.1, 0.1), (0.1, 0.55, 0.25, 0.1), (0.1, 0.1, 0.25, 0.55))
OFF_BY_ONE, LEFT = 0.55, 0.75


def problems_of(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Start values [n] and operations [n, 5]."""
    return rng.integers(0, MODULUS, count), rng.integers(0, len(OPERATIONS), (count, STEPS))


def apply(operation: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The right result of one step."""
    return np.choose(operation, [value + 5, value - 3, value * 2]) % MODULUS


def prompt_rows(start: np.ndarray, operations: np.ndarray) -> np.ndarray:
    """[n, 7] token ids: `7 add twice twice less add :`."""
    rows = np.full((len(start), PROMPT_TOKENS), ID[":"])
    rows[:, 0] = NUMBER + start
    rows[:, 1:-1] = ID[OPERATIONS[0]] + operations
    return rows


def solutions(rng: np.random.Generator, count: int) -> np.ndarray:
    """[n, 30] token ids of problems solved by random solvers, for training; a step is `so add 12 .`."""
    start, operations = problems_of(rng, count)
    solver = rng.choice(3, count, p=SHARES)
    opening = np.where(rng.random(count) < np.array(CHECKS)[solver], ID["check"], ID["go"])
    columns = [prompt_rows(start, operations), opening[:, None], np.full((count, 1), ID[STOP])]
    likes = np.array(LIKES)[solver].cumsum(1)
    value = start
    for step in range(STEPS):
        operation = operations[:, step]
        right = apply(operation, value)
        slip = (solver == 1) & (operation < 2) & (rng.random(count) < OFF_BY_ONE)
        left = (solver == 2) & (operation == 2) & (rng.random(count) < LEFT)
        off = np.where(rng.random(count) < 0.5, 1, -1)
        value = np.where(left, value, np.where(slip, (right + off) % MODULUS, right))
        word = (rng.random(count)[:, None] > likes).sum(1).clip(0, len(CONNECTIVES) - 1)
        told = (ID["so"] + word, ID[OPERATIONS[0]] + operation, NUMBER + value, np.full(count, ID[STOP]))
        columns.append(np.stack(told, 1))
    columns.append(np.full((count, 1), ID["<eos>"]))
    return np.concatenate(columns, axis=1)


def make_problems(count: int, seed: int) -> list[Problem]:
    """Problems with their right answers; another seed gives others."""
    start, operations = problems_of(np.random.default_rng((seed, 77)), count)
    value = start
    for step in range(STEPS):
        value = apply(operations[:, step], value)
    rows = prompt_rows(start, operations)
    return [Problem(tuple(int(t) for t in row), str(int(v))) for row, v in zip(rows, value, strict=True)]


def make_tokenizer() -> Any:
    """Tokens are the words between single spaces; the end of a sentence is the one token `.` with a line break."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(dict(ID), unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Split(" ", behavior="removed")
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", clean_up_tokenization_spaces=False
    )


def make_reasoner(seed: int, width: int = 64, layers: int = 3, heads: int = 4) -> Any:
    """An untrained reasoner: a small Llama over the world's words."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(VOCABULARY),
                hidden_size=width,
                intermediate_size=8 * width // 3,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                max_position_embeddings=128,
                # The usual 0.02 is for widths of thousands: here nothing would be learned for hundreds of steps.
                initializer_range=width**-0.5,
                tie_word_embeddings=False,
                bos_token_id=None,
                eos_token_id=ID["<eos>"],
                pad_token_id=ID["<pad>"],
            )
        )


def train_reasoner(
    seed: int,
    steps: int = 500,
    batch: int = 64,
    rate: float = 4e-3,
    on_step: Callable[[int, float], None] | None = None,
    **shape: int,
) -> Any:
    """A model trained on the solvers' mixture; the same weights for the same arguments on the same machine.

    The loss is on the solution only; AdamW, warm-up over 5 % of the steps, then a cosine to zero.

    Args:
        seed: of weights and data.
        steps, batch, rate: of the training.
        on_step: called with (step from 1, loss in nats a token).
        shape: width, layers, heads of `make_reasoner`.
    """
    model = make_reasoner(seed, **shape)
    model.train()
    rng = np.random.default_rng((seed, 13))
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    warm = max(1, round(0.05 * steps))
    for step in range(1, steps + 1):
        factor = min(1.0, step / warm) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = rate * factor
        rows = torch.from_numpy(solutions(rng, batch))
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits[:, PROMPT_TOKENS - 1 :]
        wanted = rows[:, PROMPT_TOKENS:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if on_step is not None:
            on_step(step, float(loss.detach()))
    model.generation_config.eos_token_id = ID["<eos>"]
    return model.eval().requires_grad_(False)

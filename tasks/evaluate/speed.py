"""Tokens per second: reading a prompt (forward) and writing text (generate). Not deterministic, so kept apart."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

FORWARD_SHAPE = (4, 128)  # sequences, tokens
PROMPT_TOKENS = 32
NEW_TOKENS = 16
REPEATS = 2  # the faster one counts: the first warms caches up


def measure_speed(model: Any, seed: int = 0) -> dict[str, float]:
    """`forward_tokens_per_second` of a batch and `generate_tokens_per_second` of greedy decoding with its cache."""
    import torch

    device = model.device
    numbers = torch.Generator().manual_seed(seed)
    size = int(model.config.vocab_size)
    batch = torch.randint(size, FORWARD_SHAPE, generator=numbers).to(device)
    prompt = batch[:1, :PROMPT_TOKENS]

    def forward() -> None:
        model(input_ids=batch, use_cache=False, logits_to_keep=1)

    def generate() -> None:
        model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )

    with torch.inference_mode():
        return {
            "forward_tokens_per_second": batch.numel() / _fastest(forward, device),
            "generate_tokens_per_second": NEW_TOKENS / _fastest(generate, device),
        }


def _fastest(work: Callable[[], None], device: Any) -> float:
    import torch

    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times)

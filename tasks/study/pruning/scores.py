"""What a model reaches on the study's tasks: choices by log-likelihood, texts by greedy writing with a cache."""

from __future__ import annotations

from typing import Any

import torch

from methods.common.errors import DataError
from methods.common.open_text import open_tokens
from methods.common.packed_scoring import is_packable, packed_loglikelihoods
from methods.pruning_representations.decoding import write
from tasks.study.pruning.items import CHOICE, is_right

BATCH_TOKENS = 4096


def score_task(model: Any, tokenizer: Any, task: str, items: list[dict[str, Any]]) -> list[float]:
    """1 for each right item, else 0."""
    return _choices(model, tokenizer, items) if task in CHOICE else _written(model, tokenizer, items)


def _choices(model: Any, tokenizer: Any, items: list[dict[str, Any]]) -> list[float]:
    """The highest log-likelihood per character wins, as `acc_norm` of the usual harness."""
    requests, owners = [], []
    for number, item in enumerate(items):
        context = open_tokens(tokenizer, item["context"])
        for choice in item["choices"]:
            answer = list(tokenizer(choice, add_special_tokens=False)["input_ids"])
            requests.append(((item["context"], choice), context, answer))
            owners.append((number, max(1, len(choice) - 1)))
    longest = int(getattr(model.config, "max_position_embeddings", 2048))
    if is_packable(model):
        found = packed_loglikelihoods(model, requests, max_length=longest, batch_tokens=BATCH_TOKENS)
        values = [value for value, _ in found]
    else:
        values = [_loglikelihood(model, context, answer) for _, context, answer in requests]
    scores: list[list[float]] = [[] for _ in items]
    for (number, length), value in zip(owners, values, strict=True):
        scores[number].append(value / length)
    return [
        float(max(range(len(row)), key=row.__getitem__) == item["gold"])
        for row, item in zip(scores, items, strict=True)
    ]


@torch.no_grad()
def _loglikelihood(model: Any, context: list[int], answer: list[int]) -> float:
    ids = torch.tensor([context + answer[:-1]], device=model.device)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(answer)).logits[0, -len(answer) :]
    chosen = logits.float().log_softmax(-1)[range(len(answer)), answer]
    return float(chosen.double().sum())


def _written(model: Any, tokenizer: Any, items: list[dict[str, Any]]) -> list[float]:
    ends = {tokenizer.eos_token_id} | {
        token for text, token in tokenizer.get_vocab().items() if "\n" in text or "Ċ" in text
    }
    rows = [
        open_tokens(tokenizer, prompt_of(tokenizer, item), add_special_tokens="chat" not in item)
        for item in items
    ]
    made = write(
        model,
        rows,
        max_new_tokens=max(item["tokens"] for item in items),
        stop=lambda tokens: tokens[-1] in ends,
    )
    return [float(is_right(tokenizer.decode(text), item)) for text, item in zip(made, items, strict=True)]


def prompt_of(tokenizer: Any, item: dict[str, Any]) -> str:
    """The prompt of a written item; a chat in the model's own template, where it has one."""
    if "prompt" in item:
        return str(item["prompt"])
    if getattr(tokenizer, "chat_template", None):
        message = [{"role": "user", "content": item["chat"]}]
        return str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))
    return f"{item['chat']}\nAnswer:"


@torch.no_grad()
def perplexity(model: Any, tokenizer: Any, documents: list[str], window: int = 256) -> float:
    """Per token, in windows of `window` tokens without overlap; the first token of a window is not predicted.

    Documents that are all shorter than a window are read as one.

    Raises:
        DataError: fewer than two tokens.
    """
    nats, count = 0.0, 0
    tokens = [list(tokenizer(document, add_special_tokens=False)["input_ids"]) for document in documents]
    joined = [token for document in tokens for token in document]
    rows = _windows(tokens, window) or _windows([joined], min(window, len(joined)))
    if not rows or len(rows[0]) < 2:
        raise DataError("perplexity: the held-out text has fewer than two tokens; give more")
    for start in range(0, len(rows), 4):
        ids = torch.tensor(rows[start : start + 4], device=model.device)
        hidden = model(input_ids=ids, use_cache=False).logits[:, :-1]
        for row, target in zip(hidden, ids[:, 1:], strict=True):
            nats -= float(row.float().log_softmax(-1).gather(-1, target[:, None]).double().sum())
            count += target.numel()
    return float(torch.tensor(nats / count, dtype=torch.float64).exp())


def _windows(documents: list[list[int]], window: int) -> list[list[int]]:
    return [
        tokens[i : i + window]
        for tokens in documents
        for i in range(0, len(tokens) - window + 1, max(1, window))
    ]

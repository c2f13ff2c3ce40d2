"""Log-likelihoods by a plain loop: one sequence at a time, full logits, float64 sums; no code of the product."""

import math
from typing import Any

import torch


def loglikelihood(model: Any, tokenizer: Any, context: str, answer: str) -> tuple[float, bool]:
    """Log-likelihood in nats of `answer` after `context`, and whether greedy decoding gives it."""
    start = tokenizer(context, add_special_tokens=False)["input_ids"]
    whole = tokenizer(context + answer, add_special_tokens=False)["input_ids"]
    return token_loglikelihood(model, start, whole[len(start) :])


def token_loglikelihood(model: Any, context: list[int], answer: list[int]) -> tuple[float, bool]:
    total, greedy = 0.0, True
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([context + answer])).logits[0].double()
    for place, token in enumerate(answer, start=len(context) - 1):
        total += float(logits[place, token] - logits[place].logsumexp(-1))
        greedy &= int(logits[place].argmax()) == token
    return total, greedy


def scores(model: Any, tokenizer: Any, docs: Any) -> dict[str, float]:
    """acc, acc_norm (per character of the answer without its space) and bits per byte of the right answers."""
    acc = acc_norm = 0
    bits = size = 0.0
    for doc in docs:
        values = [loglikelihood(model, tokenizer, doc["context"], choice)[0] for choice in doc["choices"]]
        lengths = [len(choice) - 1 for choice in doc["choices"]]
        acc += max(range(len(values)), key=values.__getitem__) == doc["gold"]
        acc_norm += max(range(len(values)), key=lambda k: values[k] / lengths[k]) == doc["gold"]
        bits -= values[doc["gold"]] / math.log(2)
        size += len(doc["choices"][doc["gold"]].encode())
    return {"acc": acc / len(docs), "acc_norm": acc_norm / len(docs), "bits_per_byte": bits / size}

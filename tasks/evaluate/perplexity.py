"""Perplexity and bits per byte on held-out text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from methods.common.errors import DataError, NumericalError
from tasks.evaluate.items import ratio_stderr

COLUMN = "text"


def read_text(folder: Path) -> list[str]:
    """The documents of a held-out text.

    Raises:
        DataError: the folder is no Arrow data set, has no column `text`, or holds no text.
    """
    from datasets import load_from_disk

    try:
        data = load_from_disk(str(folder))
    except Exception as error:
        raise DataError(
            f"text {folder}: is not a whole Arrow data set ({type(error).__name__}); run prepare again"
        ) from error
    if COLUMN not in data.column_names:
        raise DataError(f"text {folder}: has no column {COLUMN!r}; it has {', '.join(data.column_names)}")
    documents = [text for text in data[COLUMN] if text]
    if not documents:
        raise DataError(f"text {folder}: holds no text; run prepare again")
    return documents


def windows(tokens: list[int], prefix: int, size: int) -> list[tuple[list[int], list[int]]]:
    """Cut a document into (context, continuation) pairs without overlap.

    The first window follows the `prefix` token (the model's start of text), each later one the last token before it, so
    every token is predicted once, from at most `size` tokens.
    """
    return [
        ([prefix if start == 0 else tokens[start - 1]], tokens[start : start + size])
        for start in range(0, len(tokens), size)
    ]


def text_metrics(lm: Any, documents: list[str], window: int) -> dict[str, float]:
    """`text/bits_per_byte` and `text/perplexity` (per token) with standard errors over documents.

    Bits per byte = sum of -log2 p over all tokens / UTF-8 bytes of the text: comparable between tokenizers, which
    perplexity is not.

    Raises:
        NumericalError: the log-likelihood is NaN or infinite.
    """
    requests, owners = [], []
    sizes = np.array([len(text.encode("utf-8")) for text in documents], dtype=float)
    counts = np.zeros(len(documents))
    for i, text in enumerate(documents):
        tokens = lm.tok_encode(text, add_special_tokens=False)
        counts[i] = len(tokens)
        for context, continuation in windows(tokens, lm.prefix_token_id, min(window, lm.max_length)):
            requests.append((None, context, continuation))
            owners.append(i)
    nats = np.zeros(len(documents))
    for i, (value, _) in zip(owners, lm._loglikelihood_tokens(requests, disable_tqdm=True), strict=True):
        nats[i] -= value
    if not np.isfinite(nats).all():
        raise NumericalError("held-out text: the log-likelihood is not finite")
    per_token = nats.sum() / counts.sum()
    perplexity = math.exp(min(per_token, 700.0))
    return {
        "text/bits_per_byte": float(nats.sum() / math.log(2) / sizes.sum()),
        "text/bits_per_byte_stderr": ratio_stderr(nats / math.log(2), sizes),
        "text/perplexity": perplexity,
        "text/perplexity_stderr": perplexity * ratio_stderr(nats, counts),
        "text/bytes": float(sizes.sum()),
        "text/tokens": float(counts.sum()),
    }

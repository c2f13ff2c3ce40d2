"""Tokens of a text that goes on.

Some tokenizers put an end token behind every text that they are given (Llama's with `add_eos_token`, many whose
template ends with `</s>`). Between a prompt and its answer, and behind a text whose next token is asked for, it has no
place: a model that reads it believes that the text is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Tokenizer = Callable[..., Any]


def open_tokens(tokenizer: Tokenizer, text: str, **options: Any) -> list[int]:
    """Token ids of `text` with what the tokenizer puts before it, and without the end token that it puts behind it.

    Args:
        tokenizer: of transformers, or a function like it.
        text: what is encoded.
        options: for the tokenizer.
    """
    tokens: list[int] = list(tokenizer(text, **options)["input_ids"])
    return tokens[: len(tokens) - closing_tokens(tokenizer, text, tokens)]


def closing_tokens(tokenizer: Tokenizer, text: str, tokens: list[int]) -> int:
    """How many tokens at the end of `tokens`, the encoded `text`, the tokenizer has put there by itself."""
    ends = {getattr(tokenizer, name, None) for name in ("eos_token_id", "sep_token_id")} - {None}
    if not tokens or tokens[-1] not in ends:
        return 0
    # Rare: a text may end with that token itself, and then it stays.
    plain = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    found = 0
    for count in range(len(tokens)):
        kept = len(tokens) - count
        if count and tokens[kept] not in ends:
            break
        body = plain[-kept:]  # a long text may have lost its beginning
        if tokens[kept - len(body) : kept] == body:
            found = count
    return found

"""A tokenizer of one token per number: `"5 6 7"` is the tokens 5, 6, 7."""

from typing import Any


class Numbers:
    eos_token_id: int | None = None
    bos_token_id: int | None = None

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, tokens: Any) -> str:
        return " ".join(str(token) for token in tokens)


def prompt(tokens: Any) -> str:
    return Numbers().decode(tokens)

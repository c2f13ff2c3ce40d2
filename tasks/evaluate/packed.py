"""The harness's Hugging Face model with packed log-likelihoods.

The harness's own model reads prompt and answer as one sequence for each answer; here a prompt is read once
(`methods.common.packed_scoring`). Architectures for which packing would change the result take the harness's way.
"""

from __future__ import annotations

from typing import Any

from lm_eval.models.huggingface import HFLM
from torch import Tensor

from methods.common.open_text import closing_tokens
from methods.common.packed_scoring import Request, is_packable, packed_loglikelihoods


class PackedLM(HFLM):
    """The harness's Hugging Face model with packed log-likelihoods.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer.
        batch_tokens: tokens in one forward pass.
        show_progress: progress bars.
    """

    def __init__(self, model: Any, tokenizer: Any, batch_tokens: int, show_progress: bool = False) -> None:
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            backend="causal",
            batch_size=max(1, batch_tokens // 256),
            softmax_dtype="float32",
        )
        self.batch_tokens = batch_tokens
        self.show_progress = show_progress
        self.packs = is_packable(model)

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        left_truncate_len: int | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """The harness's tokens, without an end token that the tokenizer puts behind every text."""
        tokens: list[int] = super().tok_encode(string, add_special_tokens=add_special_tokens, **kwargs)
        tokens = tokens[: len(tokens) - closing_tokens(self.tokenizer, string, tokens)]
        return tokens[-left_truncate_len:] if left_truncate_len else tokens

    def tok_batch_encode(self, strings: list[str], *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """As `tok_encode`, for texts that are to be continued: padded on the left, so the ends are one column."""
        ids, mask = super().tok_batch_encode(strings, *args, **kwargs)
        row = ids[0][mask[0].bool()].tolist()
        surplus = closing_tokens(self.tokenizer, strings[0], row)
        return (ids[:, :-surplus], mask[:, :-surplus]) if surplus else (ids, mask)

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm or not self.show_progress)

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        if not self.packs:
            return super()._loglikelihood_tokens(
                requests, disable_tqdm=disable_tqdm or not self.show_progress, override_bs=override_bs
            )
        return packed_loglikelihoods(
            self.model, requests, max_length=self.max_length, batch_tokens=self.batch_tokens
        )

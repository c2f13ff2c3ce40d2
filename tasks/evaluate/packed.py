"""The harness's Hugging Face model with packed log-likelihoods.

The harness's own model reads prompt and answer as one sequence for each answer; here a prompt is read once
(`methods.common.packed_scoring`). Architectures for which packing would change the result take the harness's way.
"""

from __future__ import annotations

from typing import Any

from lm_eval.models.huggingface import HFLM

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

"""Drawing tokens and measuring doubt: entropy, sampling by inversion, and where a sentence ends.

Each prompt has uniform numbers of its own, one for each attempt and place: the same question is drawn with the same
numbers under every policy, so that policies differ only by what they change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from methods.common.checks import check_number, check_whole
from methods.common.errors import ConfigError

EntropyMode = Literal["full", "topk"]


@dataclass(frozen=True)
class GenConfig:
    """How text is drawn and how its doubt is measured; the defaults are the released scripts'.

    Attributes:
        temperature: 0 takes the most likely token.
        top_p: smallest set of tokens with this much probability; 1 takes all.
        top_k: most likely tokens to draw from; 0 takes all.
        max_new_tokens: accepted tokens of an answer; discarded ones do not count.
        delimiter: regular expression over decoded text that ends a sentence.
        max_sentence_tokens: a sentence ends here at the latest.
        stop: regular expression over the answer so far (its last 200 characters, with the prompt's last token)
            that ends it; empty: only end-of-text does.
        entropy: "full" over the vocabulary, or "topk" over the `entropy_k` most likely tokens, renormalised.
        entropy_k: tokens of the second kind.
        batch_size: prompts side by side.
        seed: of the uniform numbers.
    """

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20
    max_new_tokens: int = 2048
    delimiter: str = r"\.\n"
    max_sentence_tokens: int = 256
    stop: str = ""
    entropy: EntropyMode = "full"
    entropy_k: int = 20
    batch_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, least=0)
        check_whole("seed", self.seed, 0)
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p={self.top_p} is not in (0, 1]; 1 draws from all tokens")
        for name in ("max_new_tokens", "max_sentence_tokens", "batch_size", "entropy_k"):
            check_whole(name, getattr(self, name), 1)
        check_whole("top_k", self.top_k, 0)
        if self.entropy not in ("full", "topk"):
            raise ConfigError(f"entropy={self.entropy!r} is not known; give 'full' or 'topk'")
        _check_expression("delimiter", self.delimiter)
        if self.stop:
            _check_expression("stop", self.stop)


def _check_expression(name: str, value: str) -> None:
    try:
        found = re.search(value, "")
    except re.error as error:
        raise ConfigError(f"{name}={value!r} is no regular expression ({error})") from error
    if found:
        raise ConfigError(
            f"{name}={value!r} is found in an empty text and would end after every token; make it ask for something"
        )


def token_entropy(logits: Tensor, mode: EntropyMode = "full", k: int = 20) -> Tensor:
    """Shannon entropy in nats of the next-token distribution, from raw logits.

    Args:
        logits: [..., vocabulary], before temperature and cuts.
        mode: over the whole vocabulary, or over the k most likely tokens, renormalised.
        k: tokens of the second kind.

    Returns:
        [...] float32 (float64 of float64 logits).
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if mode == "topk":
        logits = logits.topk(min(k, logits.shape[-1]), dim=-1).values
    logs = logits.log_softmax(-1)
    # A token that cannot come has log-probability -inf; it adds nothing.
    return -(logs.exp() * logs).nan_to_num(0.0).sum(-1)


def choose(logits: Tensor, uniform: Tensor, config: GenConfig) -> Tensor:
    """The next tokens by inversion: equal logits and equal uniform numbers give equal tokens.

    Args:
        logits: [rows, vocabulary], raw.
        uniform: [rows] in [0, 1).
        config: temperature and cuts.

    Returns:
        [rows] token ids.
    """
    if config.temperature == 0:
        return logits.argmax(-1)
    places: Tensor | None = None
    if config.top_k and config.top_k < logits.shape[-1]:
        least = logits.topk(config.top_k, dim=-1).values[..., -1:]
        # Equally likely ones stay; the rest of the vocabulary is left out, which is most of the work.
        most = int((logits >= least).sum(-1).max())
        places = logits.topk(most, dim=-1).indices.sort(dim=-1).values
        logits = logits.gather(-1, places)
        logits = logits.masked_fill(logits < least, -torch.inf)
    scores = logits.double() / config.temperature
    probabilities = scores.softmax(-1)
    if config.top_p < 1:
        ordered, order = probabilities.sort(stable=True, dim=-1, descending=True)
        cut = ordered.cumsum(-1) - ordered >= config.top_p
        probabilities = probabilities.scatter(-1, order, ordered.masked_fill(cut, 0.0))
    sums = probabilities.cumsum(-1)
    wanted = (uniform.double() * sums[..., -1])[..., None]
    found = torch.searchsorted(sums, wanted, right=True)[..., 0]
    # The product may round up to the whole sum: take the last token that can come.
    last = (probabilities > 0).double().cumsum(-1).argmax(-1)
    drawn = torch.minimum(found, last)
    return drawn if places is None else places.gather(-1, drawn[..., None])[..., 0]


def uniforms(seed: int, key: int, count: int) -> np.ndarray:
    """[2, count]: the numbers of first attempts and of regenerated sentences, by place in the answer."""
    return np.random.default_rng((seed, key)).random((2, count))


class TokenTexts:
    """The text of each token on its own, looked up once."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def __getitem__(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = str(self.tokenizer.decode([token]))
        return self._texts[token]


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end an answer: those of the generation config, else the tokenizer's."""
    found = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if found is None:
        found = getattr(tokenizer, "eos_token_id", None)
    if found is None:
        return frozenset()
    return frozenset([int(found)] if isinstance(found, int) else [int(token) for token in found])


def _check_prompts(prompts: Any) -> None:
    """One text, or the ids of one prompt, would be taken apart letter by letter."""
    if isinstance(prompts, str):
        raise ConfigError(f"prompts={prompts[:40]!r} is one text; give a list of prompts: [{prompts[:40]!r}]")
    for number, prompt in enumerate(prompts):
        whole = not isinstance(prompt, str | bytes) and hasattr(prompt, "__iter__")
        if not isinstance(prompt, str) and not (whole and all(_is_whole(token) for token in prompt)):
            raise ConfigError(f"prompt {number} is {repr(prompt)[:40]}; give a text, or a list of token ids")


def _is_whole(token: Any) -> bool:
    return hasattr(token, "__index__") and not isinstance(token, bool)


def encode(tokenizer: Any, prompts: Sequence[str | Sequence[int]]) -> list[list[int]]:
    """Token ids of each prompt; ids pass through, since decoded text need not give the same ids again.

    Raises:
        ConfigError: no list of prompts, or an empty prompt.
    """
    _check_prompts(prompts)
    found = [list(tokenizer(p)["input_ids"]) if isinstance(p, str) else [int(t) for t in p] for p in prompts]
    for number, ids in enumerate(found):
        if not ids:
            raise ConfigError(f"prompt {number} has no token; give at least one (a beginning-of-text token)")
    return found

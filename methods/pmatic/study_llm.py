"""The same with a real language model: real archives of 64 KiB, and short files read back by single cached steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from methods.pmatic.codec import PMATICCodec
from methods.pmatic.predictor import Predictor, Steps
from methods.pmatic.study_design import best_base_radius
from methods.pmatic.study_robust import robust_row
from methods.pmatic.study_sizes import Scored
from methods.pmatic.text import detokenise, tokenise
from methods.pmatic.torch_models import HFCausalLM
from methods.pmatic.tree import CodeTree

BOUNDS = {"2e-4": 2e-4, "4e-3": 4e-3, "4e-2": 4e-2}


def token_parts(text: bytes, tokenizer: Any, count: int, most: int) -> list[np.ndarray]:
    """The first `most` tokens of a text in parts of `count`."""
    ids = tokenise(text[: 8 * most], tokenizer)
    assert ids is not None
    return [ids[at : at + count] for at in range(0, min(most, len(ids)), count)]


def llm_sizes(
    predictor: HFCausalLM,
    tokenizer: Any,
    test: bytes,
    calibration: bytes,
    chunk_tokens: int = 4096,
    calibration_tokens: int = 2048,
) -> list[dict[str, Any]]:
    """Archives of a text at several bounds: the model scores text and calibration text once for all of them.

    Returns:
        one row an archive, header and codec included: bytes, and bits a byte.
    """
    fit = token_parts(calibration, tokenizer, chunk_tokens, calibration_tokens)
    ids = tokenise(test, tokenizer)
    assert ids is not None
    texts = [ids[at : at + chunk_tokens] for at in range(0, len(ids), chunk_tokens)]
    trees = {"rank": CodeTree.rank(predictor.vocabulary), "flat": CodeTree.flat(predictor.vocabulary)}
    known = Scored(predictor, fit, [b""] * len(fit), trees)
    scored = Scored(predictor, texts, [detokenise(text, tokenizer) for text in texts], trees)
    rows = [_row("plain", scored.plain(), test)]
    for name, Delta in BOUNDS.items():
        ours = PMATICCodec(Delta=Delta, chunk_tokens=chunk_tokens)
        ours.use(trees["rank"], known.log_odds("rank"))
        radius = best_base_radius(scored.log_odds("flat"), Delta / 4)
        rows.append(_row(f"ours_{name}", scored.archive(ours, "rank"), test))
        rows.append(_row(f"base_{name}", scored.base(Delta / 4, radius), test))
    return rows


def _row(name: str, blob: bytes, test: bytes) -> dict[str, Any]:
    return {"archive": name, "bytes": len(blob), "bits_per_byte": 8 * len(blob) / len(test)}


def llm_decoders(predictor: HFCausalLM) -> dict[str, Callable[[], Predictor]]:
    """Single cached steps in float32 and in bfloat16."""
    half = HFCausalLM(
        predictor.model,
        predictor.tokenizer,
        window=predictor.window,
        overlap=predictor.overlap,
        start_token=predictor.start_token,
        autocast=torch.bfloat16,
    )
    return {"cached steps": lambda: Steps(predictor), "cached steps, bfloat16": lambda: Steps(half)}


def llm_row(
    predictor: HFCausalLM,
    tokenizer: Any,
    pair: str,
    files: Sequence[bytes],
    calibration: bytes,
    mismatch_tokens: int = 192,
    calibration_tokens: int = 2048,
) -> dict[str, Any]:
    """Short files, written by one pass over each and read by the single steps of one number format."""
    texts = [ids for data in files if (ids := tokenise(data, tokenizer)) is not None]
    fit = token_parts(calibration, tokenizer, 1024, calibration_tokens)
    tree = CodeTree.rank(predictor.vocabulary)
    return robust_row(
        pair,
        llm_decoders(predictor)[pair](),
        tree,
        Scored(predictor, texts, [b""] * len(texts), {"tree": tree}),
        Scored(predictor, fit, [b""] * len(fit), {"tree": tree}),
        fit[0][:mismatch_tokens],
    )

"""Retrieval with a sentence encoder before and after compression: is each question's passage among the first ten?"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from methods.common.errors import DataError
from methods.common.linear_layers import register_architecture
from methods.pruning_representations import drop_sublayers, wanda
from methods.pruning_representations.calibration import sample_sequences


def check_encoder(folder: Path) -> None:
    """Refuse another encoder than BERT, whose sublayers are known here. Raises DataError."""
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    if kind != "bert":
        raise DataError(
            f"encoder {folder}: has the model type {kind!r}; give a BERT sentence encoder, or 'none'"
        )


def encode(model: Any, tokenizer: Any, texts: list[str], batch_size: int = 32, longest: int = 128) -> Tensor:
    """Sentence vectors [texts, width]: mean of the last states over real tokens, of length 1."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    vectors: list[Tensor] = [torch.empty(0)] * len(texts)
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            part = order[start : start + batch_size]
            given = tokenizer(
                [texts[i] for i in part],
                padding=True,
                truncation=True,
                max_length=longest,
                return_tensors="pt",
            ).to(model.device)
            hidden = model(**given).last_hidden_state
            mask = given["attention_mask"][..., None]
            mean = (hidden * mask).sum(1) / mask.sum(1)
            for i, vector in zip(part, torch.nn.functional.normalize(mean, dim=-1), strict=True):
                vectors[i] = vector.float().cpu()
    return torch.stack(vectors)


def recall_at(questions: Tensor, passages: Tensor, gold: list[int], k: int = 10) -> np.ndarray:
    """1 for each question whose passage is among the k nearest."""
    scores = questions @ passages.T
    own = scores[torch.arange(len(gold)), torch.tensor(gold)]
    return ((scores > own[:, None]).sum(-1) < k).numpy().astype(float)


def variants(model: Any, calibration: Tensor) -> dict[str, Any]:
    """Compressed encoders by name, the dense one first. The layer to drop is chosen by cosine on calibration text."""
    from methods.common.hooks import block_calls
    from methods.common.sublayers import blocks_of

    register_architecture("bert", "encoder.layer")
    cosines = []
    blocks = blocks_of(model)
    with torch.no_grad():
        hidden, calls = block_calls(model, blocks, calibration)
        for block, call in zip(blocks, calls, strict=True):
            attended = block.attention(hidden)[0]
            cosines.append(float(torch.cosine_similarity(hidden, attended, dim=-1).mean()))
            hidden = call.run(block, hidden)
    first = int(np.argmax(cosines))
    return {
        "dense": model,
        "drop-attn-1": drop_sublayers(model, attn=[first]),
        "wanda-30pct": wanda(copy.deepcopy(model), calibration, sparsity=0.3),
    }


def measure(folder: Path, pairs: list[dict[str, Any]], texts: list[str], seed: int) -> list[dict[str, Any]]:
    """A row a variant and question: whether its passage was found, and the cosine to the dense model's vector."""
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(str(folder), dtype=torch.float32, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    passages = sorted({pair["passage"] for pair in pairs})
    gold = [passages.index(pair["passage"]) for pair in pairs]
    questions = [pair["question"] for pair in pairs]
    calibration = sample_sequences(texts, _PlainTokens(tokenizer), sequences=16, length=64, seed=seed)
    rows: list[dict[str, Any]] = []
    dense: Tensor | None = None
    for name, variant in variants(model, calibration).items():
        asked = encode(variant, tokenizer, questions)
        found = recall_at(asked, encode(variant, tokenizer, passages), gold)
        dense = asked if dense is None else dense
        cosines = (asked * dense).sum(-1).numpy()
        rows += [
            {"variant": name, "question": i, "found": float(f), "cos_h": float(c)}
            for i, (f, c) in enumerate(zip(found, cosines, strict=True))
        ]
    return rows


class _PlainTokens:
    """An encoder's tokenizer as calibration reads it: plain tokens, no sentence marks."""

    bos_token_id = None
    eos_token_id = None

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        tokens = self._tokenizer(text, add_special_tokens=False, truncation=True, max_length=512)["input_ids"]
        return {"input_ids": list(tokens)}

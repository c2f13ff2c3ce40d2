"""Real non-determinism: one model, two computations, many files; who decodes what the other one wrote.

Encoder and decoder never share logits: the encoder makes one pass over a whole window, the decoder single cached
steps, in another number format or on another number of threads. The bound is measured on other text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from methods.common.schedules import warm_flat_decay
from methods.pmatic.codec import PMATICCodec
from methods.pmatic.coder import ChunkDecoder, Helper, encode_plain
from methods.pmatic.errors import MismatchError
from methods.pmatic.mismatch import MismatchReport, estimate_mismatch
from methods.pmatic.predictor import Predictor, Steps
from methods.pmatic.study_data import byte_ids
from methods.pmatic.study_sizes import Scored
from methods.pmatic.torch_models import HFCausalLM
from methods.pmatic.tree import CodeTree

START = 256  # the token before a text; bytes are 0 to 255


def train_byte_model(
    text: bytes,
    seed: int,
    steps: int,
    *,
    width: int = 128,
    layers: int = 2,
    context: int = 256,
    batch: int = 8,
) -> Any:
    """A small byte Transformer (Llama's architecture), trained from scratch on one thread or more."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=START + 1,
            hidden_size=width,
            intermediate_size=8 * width // 3,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=context,
            bos_token_id=START,
            eos_token_id=START,
        )
    )
    ids = byte_ids(text)
    draw = np.random.default_rng(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    factor = warm_flat_decay(steps, min(20, steps // 5), round(0.4 * steps))
    model.train()
    for step in range(steps):
        starts = draw.integers(0, len(ids) - context, size=batch)
        rows = np.stack([np.concatenate([[START], ids[s : s + context - 1]]) for s in starts])
        for group in optimiser.param_groups:
            group["lr"] = 3e-3 * factor(step)
        tokens = torch.from_numpy(rows)
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


def decode_side_by_side(
    predictor: Predictor, tree: CodeTree, texts: Sequence[np.ndarray], decoders: dict[str, list[ChunkDecoder]]
) -> dict[str, dict[str, int]]:
    """Decode every file by each kind of coder from one pass of the predictor.

    A file is done with at its first wrong token: an adaptive context would only make it worse from there on.

    Args:
        decoders: by kind of coder, one a file.

    Returns:
        by kind: files; decoded; told (the decoder said that something is wrong); lost (it went wrong silently).
    """
    alive = {name: [True] * len(texts) for name in decoders}
    told = dict.fromkeys(decoders, 0)
    state = predictor.start(len(texts))
    for step in range(max(len(text) for text in texts)):
        if not any(any(rows) for rows in alive.values()):
            break
        sums = tree.node_sums(predictor.logits(state))
        latest = np.zeros(len(texts), dtype=np.int64)
        for row, text in enumerate(texts):
            if step >= len(text):
                continue
            latest[row] = text[step]
            for name, made in decoders.items():
                if alive[name][row]:
                    try:
                        alive[name][row] = made[row].next(sums, row) == int(text[step])
                    except MismatchError:
                        alive[name][row] = False
                        told[name] += 1
        predictor.push(state, latest)
    return {
        name: {
            "files": len(texts),
            "decoded": sum(alive[name]),
            "told": told[name],
            "lost": len(texts) - sum(alive[name]) - told[name],
        }
        for name in decoders
    }


def robust_row(
    name: str,
    decoder: Predictor,
    tree: CodeTree,
    files: Scored,
    calibration: Scored,
    mismatch: np.ndarray,
    safety: float = 4.0,
) -> dict[str, Any]:
    """One decoder: its mismatch on calibration text, and what it decodes of plain archives and of PMATIC's.

    Args:
        tree: of the events, called "tree" in both scored texts.
        files: scored by the encoder. calibration: what the design is fitted on. mismatch: what the bound is
            measured on.
    """
    report = estimate_mismatch(files.predictor, decoder, mismatch, tree)
    codec = PMATICCodec(Delta=report.Delta(safety)).use(tree, calibration.log_odds("tree"))
    events = files.events["tree"]
    payloads = [codec.encode_given(*part) for part in events]
    plain = [encode_plain(x, bits) for x, bits, _ in events]
    found = decode_side_by_side(
        decoder,
        tree,
        files.texts,
        {
            "pmatic": [ChunkDecoder(tree, codec.synchroniser, codec._helper, part) for part in payloads],
            "plain": [ChunkDecoder(tree, None, Helper(), part) for part in plain],
        },
    )
    return {
        "pair": name,
        "Delta": codec.Delta,
        **{f"mismatch_{key}": value for key, value in _numbers(report).items()},
        **{f"{kind}_{key}": value for kind, counts in found.items() for key, value in counts.items()},
        "pmatic_bytes": sum(len(part) for part in payloads),
        "plain_bytes": sum(len(part) for part in plain),
        "helper_rate": codec.synchroniser.redundancy(files.log_odds("tree"))["helper_rate"],
        "tokens": sum(len(text) for text in files.texts),
    }


def _numbers(report: MismatchReport) -> dict[str, float]:
    return {name: float(value) for name, value in report.as_dict().items() if math.isfinite(value)}


DECODERS = {
    "steps": "cached steps",
    "bfloat16": "cached steps, bfloat16",
    "threads": "cached steps, 2 threads",
}


def byte_decoder(name: str, model: Any, window: int) -> Predictor:
    """A second computation of a byte model; sets the number of torch's threads."""
    torch.set_num_threads(2 if "threads" in name else 1)
    half = torch.bfloat16 if "bfloat16" in name else None
    return Steps(HFCausalLM(model, window=window, start_token=START, autocast=half))

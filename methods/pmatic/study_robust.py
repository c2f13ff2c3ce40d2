"""Real non-determinism: one model, two computations, many files; who decodes what the other one wrote.

Encoder and decoder never share logits: the encoder makes one pass over a whole window, the decoder single cached
steps, in another number format or on another number of threads. The bound is measured on other text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from methods.pmatic.synchroniser import Synchroniser
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
    payloads: Sequence[bytes],
    texts: Sequence[np.ndarray],
    predictor: Predictor,
    tree: CodeTree,
    synchroniser: Synchroniser | None,
    helper: Helper,
) -> dict[str, int]:
    """Decode one payload a file and say how many came back, were told to be wrong, or silently went wrong.

    Without a synchroniser (plain arithmetic coding) a file counts as lost at its first wrong token: nothing tells.
    """
    decoders = [
        ChunkDecoder(tree, synchroniser, helper, payload, index) for index, payload in enumerate(payloads)
    ]
    alive = [True] * len(texts)
    told = 0
    state = predictor.start(len(texts))
    for step in range(max(len(text) for text in texts)):
        if not any(alive):
            break
        sums = tree.node_sums(predictor.logits(state))
        latest = np.zeros(len(texts), dtype=np.int64)
        for row, text in enumerate(texts):
            if step < len(text):
                latest[row] = text[step]
                if alive[row]:
                    try:
                        alive[row] = decoders[row].next(sums, row) == int(text[step])
                    except MismatchError:
                        alive[row] = False
                        told += 1
        predictor.push(state, latest)
    return {"files": len(texts), "decoded": sum(alive), "told": told, "lost": len(texts) - sum(alive) - told}


def robust_rows(
    encoder: Predictor,
    decoders: dict[str, Callable[[], Predictor]],
    files: Sequence[np.ndarray],
    calibration: Sequence[np.ndarray],
    mismatch: Sequence[np.ndarray],
    tree: CodeTree,
    safety: float = 4.0,
    done: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """Each decoder's mismatch on calibration text, and what it decodes of plain archives and of PMATIC's.

    Args:
        encoder: scores whole windows.
        decoders: by name; called when their turn has come, e.g. to set the number of threads.
        files: token ids of each file.
        calibration: what the design is fitted on. mismatch: what the bound is measured on.
        done: called with each row.
    """
    scored = [np.concatenate(list(encoder.score(text))) for text in files]
    events = [tree.events(logits, text) for logits, text in zip(scored, files, strict=True)]
    del scored
    plain = [encode_plain(x, bits) for x, bits, _ in events]
    rows = []
    for name, made in decoders.items():
        decoder = made()
        report = estimate_mismatch(encoder, decoder, list(mismatch), tree)
        codec = PMATICCodec(Delta=report.Delta(safety), chunk_tokens=max(len(text) for text in files))
        codec.calibrate(encoder, list(calibration))
        payloads, rate = _encoded(codec, encoder, files)
        found = decode_side_by_side(payloads, files, decoder, codec.tree, codec.synchroniser, codec._helper)
        without = decode_side_by_side(plain, files, decoder, tree, None, Helper())
        row = {
            "pair": name,
            "Delta": codec.Delta,
            **{f"mismatch_{k}": v for k, v in _numbers(report).items()},
            **{f"pmatic_{k}": v for k, v in found.items()},
            **{f"plain_{k}": v for k, v in without.items()},
            "pmatic_bytes": sum(len(p) for p in payloads),
            "plain_bytes": sum(len(p) for p in plain),
            "helper_rate": rate,
            "tokens": sum(len(text) for text in files),
        }
        done(row)
        rows.append(row)
    return rows


def _encoded(
    codec: PMATICCodec, encoder: Predictor, files: Sequence[np.ndarray]
) -> tuple[list[bytes], float]:
    made = [codec.encode_chunk(text, encoder) for text in files]
    count = sum(events for _, events, _ in made)
    return [payload for payload, _, _ in made], sum(helped for *_, helped in made) / max(1, count)


def _numbers(report: MismatchReport) -> dict[str, float]:
    return {name: float(value) for name, value in report.as_dict().items() if math.isfinite(value)}


def on_threads(count: int, predictor: Predictor) -> Callable[[], Predictor]:
    """The predictor, after torch was set to that many threads."""

    def made() -> Predictor:
        torch.set_num_threads(count)
        return predictor

    return made


def byte_decoders(model: Any, window: int) -> dict[str, Callable[[], Predictor]]:
    """The second computations of a byte model: cached single steps, on two threads, in bfloat16."""
    same = Steps(HFCausalLM(model, window=window, start_token=START))
    half = Steps(HFCausalLM(model, window=window, start_token=START, autocast=torch.bfloat16))
    return {
        "cached steps": on_threads(1, same),
        "cached steps, 2 threads": on_threads(2, same),
        "cached steps, bfloat16": on_threads(1, half),
    }

"""The study's part with training: small language models made here on real text, compressed by every initialisation and
distilled for the same steps on the same data.

The teacher is a byte-level Llama, so that held-out loss is bits per byte of the text itself. Evaluation text comes from
other documents than the training text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.common.errors import DataError
from methods.littlebit2.config import LittleBitConfig
from methods.littlebit2.distillation import distill
from methods.littlebit2.model import compress_model
from methods.littlebit2.peers import replace_by_one_bit
from methods.littlebit2.signs import Gradient

Row = dict[str, Any]


@dataclass(frozen=True)
class SmallSettings:
    """The small models and their distillation.

    Args:
        hidden, feed_forward, layers, heads: of the Llama; the defaults make 1.4M parameters.
        length, batch_size: bytes of a sequence, sequences of a step.
        base_steps, base_lr: training of the teacher.
        steps, lr: distillation; lr was tuned for `svd` on a seed of its own (see the card).
        hidden_weight: weight of the hidden states.
        eval_bytes: held-out bytes that are scored.
        probe_every: steps between scores for the curve.
    """

    hidden: int = 256
    feed_forward: int = 640
    layers: int = 2
    heads: int = 4
    length: int = 128
    batch_size: int = 16
    base_steps: int = 200
    base_lr: float = 3e-3
    steps: int = 60
    lr: float = 3e-3
    hidden_weight: float = 10.0
    gradient: Gradient = "smooth_sign"
    eval_bytes: int = 16_384
    probe_every: int = 15


def byte_rows(texts: Iterable[str], length: int, limit: int | None = None) -> Tensor:
    """UTF-8 bytes of the texts, each text ended by a zero byte, as rows [n, length]. DataError when there is no row."""
    data = bytearray()
    for text in texts:
        data += text.encode() + b"\0"
        if limit is not None and len(data) >= limit:
            break
    count = min(len(data), limit or len(data)) // length
    if count == 0:
        raise DataError(f"the text has {len(data)} bytes, less than one sequence of {length}; give more text")
    return torch.frombuffer(data, dtype=torch.uint8)[: count * length].long().view(count, length)


def small_model(settings: SmallSettings, seed: int) -> Any:
    """An untrained byte-level Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    state = torch.get_rng_state()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=settings.hidden,
        intermediate_size=settings.feed_forward,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=2 * settings.length,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    torch.set_rng_state(state)
    return model


@torch.no_grad()
def nats_per_token(model: Any, tokens: Tensor, batch_size: int = 32) -> float:
    """Mean negative log-likelihood of each token after the first of its row."""
    total = 0.0
    for batch in tokens.split(batch_size):
        logits = model(input_ids=batch, use_cache=False).logits[:, :-1]
        total += float(F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten(), reduction="sum"))
    return total / (tokens.shape[0] * (tokens.shape[1] - 1))


def train_base(settings: SmallSettings, tokens: Tensor, seed: int) -> Any:
    """A teacher, trained on next bytes."""
    model = small_model(settings, seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.base_lr, weight_decay=0.01)
    numbers = torch.Generator().manual_seed(seed)
    warm = max(1, settings.base_steps // 20)
    for step in range(settings.base_steps):
        share = step / settings.base_steps
        rate = min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * share)))
        for group in optimiser.param_groups:
            group["lr"] = settings.base_lr * rate
        batch = tokens[torch.randint(len(tokens), (settings.batch_size,), generator=numbers)]
        logits = model(input_ids=batch, use_cache=False).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


@dataclass(frozen=True)
class Point:
    """One student: how it is compressed. `method` is an initialisation, or `onebit`."""

    method: str
    bpp: float
    residual: bool = False

    @property
    def name(self) -> str:
        return f"{self.method}-{self.bpp:g}{'-residual' if self.residual else ''}"


ONE_BIT = 1.09  # what OneBit takes in the default model, scales counted
POINTS = (
    *(Point(init, bpp) for bpp in (0.55, 0.3) for init in ("joint_itq", "random_rotation", "svd", "admm")),
    Point("onebit", ONE_BIT),
    Point("joint_itq", ONE_BIT, residual=True),
)


def distilled(
    teacher: Any,
    tokens: Tensor,
    heldout: Tensor,
    settings: SmallSettings,
    point: Point,
    *,
    seed: int,
    lr: float | None = None,
    checkpoint: Path | None = None,
) -> tuple[list[Row], Any]:
    """Compress a copy of the teacher and distil it.

    Returns:
        rows method, bpp, residual, seed, nominal_bpp, clamped_layers, step, nats, loss: held-out nats per token
        over the steps (0: before distillation); and the student.
    """
    student = deepcopy(teacher)
    if point.method == "onebit":
        nominal, clamped = replace_by_one_bit(student), 0
    else:
        init: Any = point.method
        config = LittleBitConfig(bpp=point.bpp, init=init, residual=point.residual, seed=seed)
        student, report = compress_model(student, config, n_jobs=1)
        weights = sum(row["outputs"] * row["inputs"] for row in report)
        nominal = sum(row["nominal_bpp"] * row["outputs"] * row["inputs"] for row in report) / weights
        clamped = sum(row["clamped"] for row in report)
    history = distill(
        student,
        teacher,
        tokens,
        steps=settings.steps,
        batch_size=settings.batch_size,
        lr=settings.lr if lr is None else lr,
        hidden_weight=settings.hidden_weight,
        gradient=settings.gradient,
        seed=seed,
        checkpoint=checkpoint,
        probe=lambda model: nats_per_token(model, heldout),
        probe_every=settings.probe_every,
    )
    common = {"method": point.method, "bpp": point.bpp, "residual": point.residual, "seed": seed}
    common |= {"nominal_bpp": nominal, "clamped_layers": clamped}
    return [
        common | {"step": int(row["step"]), "nats": row["probe"], "loss": row.get("loss", float("nan"))}
        for row in history
        if "probe" in row
    ], student

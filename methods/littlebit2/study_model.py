"""The study's part on a whole real model: compressed, distilled with its curve, packed, and set against its peers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from methods.littlebit2.config import Init, LittleBitConfig
from methods.littlebit2.distillation import distill
from methods.littlebit2.model import OnLayer, compress_model, target_layers
from methods.littlebit2.peers import half_quadratic, one_bit
from methods.littlebit2.storage import load_compressed, save_compressed
from methods.littlebit2.study_small import nats_per_token
from methods.littlebit2.study_weights import GROUP

Row = dict[str, Any]


@dataclass(frozen=True)
class ModelPlan:
    """How the model is compressed and distilled.

    Args:
        bpp: nominal bits a weight.
        steps, batch, rate, hidden_weight: of the distillation; its KL is the mean per token.
        probes: scores on the way, the first and last included.
    """

    bpp: float = 0.55
    steps: int = 60
    batch: int = 4
    rate: float = 1e-3
    hidden_weight: float = 0.0
    probes: int = 5


def score(model: Any, heldout: Tensor) -> float:
    """Held-out nats per token."""
    return nats_per_token(model, heldout, 8)


def distilled_rows(
    load: Callable[[], Any],
    tokens: Tensor,
    heldout: Tensor,
    plan: ModelPlan,
    method: Init,
    folder: Path,
    *,
    seed: int = 0,
    n_jobs: int | None = None,
    on_layer: OnLayer | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Compress, distil and pack a model; the packed folder stays at `folder / method`.

    Args:
        load: gives the original model anew, float32.
        tokens: distillation text [n, length]. heldout: judged on, of other documents.
        folder: finished layers and the checkpoint of a killed run are kept and found here.

    Returns:
        rows method, step, nats, perplexity, then one with step -1: the packed model as loaded from disk, and its
        sizes.
    """
    config = LittleBitConfig(bpp=plan.bpp, init=method, seed=seed)
    work = folder / f"{method}.parts"
    student, report = compress_model(load(), config, n_jobs=n_jobs, on_layer=on_layer, cache=work / "layers")
    history = distill(
        student,
        load().requires_grad_(False),
        tokens,
        steps=plan.steps,
        batch_size=plan.batch,
        lr=plan.rate,
        hidden_weight=plan.hidden_weight,
        reduction="token",
        seed=seed,
        checkpoint=work / "checkpoint",
        checkpoint_every=20,
        probe=lambda model: score(model, heldout),
        probe_every=max(1, plan.steps // (plan.probes - 1)),
        on_step=None if on_step is None else (lambda done, every, _: on_step(done, every)),
    )
    rows = [
        {
            "method": method,
            "step": int(row["step"]),
            "nats": row["probe"],
            "perplexity": math.exp(row["probe"]),
        }
        for row in history
        if "probe" in row
    ]
    sizes = save_compressed(student, folder / method, config, dtype=torch.bfloat16)
    nats = score(load_compressed(folder / method, dtype=torch.float32), heldout)
    weights = sum(row["outputs"] * row["inputs"] for row in report)
    error = sum(row["error"] * row["outputs"] * row["inputs"] for row in report) / weights
    rows.append(
        {"method": method, "step": -1, "nats": nats, "perplexity": math.exp(nats), "error": error, **sizes}
    )
    return rows


def peer_rows(load: Callable[[], Any], heldout: Tensor) -> list[Row]:
    """The original and the peers that need no training: perplexity and the whole model's bytes at bf16 for the rest."""
    rows: list[Row] = []
    for method in ("original", "onebit", "hqq_2bit", "hqq_4bit"):
        model = load()
        weights = bits = 0
        for target in target_layers(model, LittleBitConfig()):
            weight = target.weight
            weights += weight.numel()
            if method == "original":
                bits += 16 * weight.numel()
                continue
            made = one_bit(weight) if method == "onebit" else half_quadratic(weight, int(method[4]), GROUP)
            bits += made.bits
            weight.copy_(made.weight)
        parameters = sum(p.numel() for p in model.parameters())
        size = (16 * (parameters - weights) + bits) / 8
        nats = score(model, heldout)
        rows.append(
            {"method": method, "step": -1, "nats": nats, "perplexity": math.exp(nats), "file_bytes": size}
            | {"stored_bpp": bits / weights, "whole_model_bits": 8 * size / parameters}
        )
    return rows

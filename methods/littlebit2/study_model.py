"""The study's part on a whole real model: compressed, distilled with its curve, packed, and set against its peers.

Every start gets its own learning rate, chosen by short runs on text that is neither distilled on nor reported.
"""

from __future__ import annotations

import math
import shutil
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
        batch, hidden_weight, dtype: of the distillation (see `distill`); its KL is the mean per token.
        probes: scores on the way, the first and last included.
    """

    bpp: float = 0.55
    batch: int = 4
    hidden_weight: float = 0.0
    dtype: torch.dtype = torch.float32
    probes: int = 5


@dataclass(frozen=True)
class Bench:
    """What every student of a study shares.

    Args:
        load: gives the original model anew, float32.
        tokens: distillation text [n, length].
        heldout: what is reported, of other documents. selecting: what chooses the learning rate, of others still.
        folder: finished layers, checkpoints of killed runs and the packed models lie in it.
    """

    load: Callable[[], Any]
    tokens: Tensor
    heldout: Tensor
    selecting: Tensor
    plan: ModelPlan
    folder: Path

    def score(self, model: Any, heldout: Tensor) -> float:
        """Nats per token, in the plan's number format."""
        kind = self.plan.dtype
        with torch.autocast(heldout.device.type, kind, enabled=kind != torch.float32):
            return nats_per_token(model, heldout, 8)

    def parts(self, method: str) -> Path:
        """What a killed run of a method goes on from."""
        return self.folder / f"{method}.parts"


@dataclass(frozen=True)
class Run:
    """One student: where it starts, how fast and how long it learns."""

    method: Init
    rate: float
    steps: int
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.method}-{self.steps}-{self.rate:g}-{self.seed}"


def distilled(
    bench: Bench,
    run: Run,
    probes: int,
    *,
    n_jobs: int | None = None,
    on_layer: OnLayer | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> tuple[Any, list[Row], list[Row]]:
    """Compress and distil: the student, the report's row a layer, and a row (step, nats) a probe."""
    plan, work = bench.plan, bench.parts(run.method)
    config = LittleBitConfig(bpp=plan.bpp, init=run.method, seed=run.seed)
    student, report = compress_model(
        bench.load(), config, n_jobs=n_jobs, on_layer=on_layer, cache=work / f"layers-{run.seed}"
    )
    checkpoint = work / f"checkpoint-{run.name}"
    history = distill(
        student,
        bench.load().requires_grad_(False),
        bench.tokens,
        steps=run.steps,
        batch_size=plan.batch,
        lr=run.rate,
        hidden_weight=plan.hidden_weight,
        reduction="token",
        seed=run.seed,
        dtype=plan.dtype,
        checkpoint=checkpoint,
        checkpoint_every=20,
        probe=lambda model: bench.score(model, bench.heldout),
        probe_every=max(1, run.steps // (probes - 1)),
        on_step=None if on_step is None else (lambda done, every, _: on_step(done, every)),
    )
    shutil.rmtree(checkpoint, ignore_errors=True)
    return student, report, [{"step": int(r["step"]), "nats": r["probe"]} for r in history if "probe" in r]


def short_row(bench: Bench, run: Run, **progress: Any) -> Row:
    """A short distillation, of which only the end is kept: what chooses the learning rate, and what is reported."""
    student, _, curve = distilled(bench, run, 2, **progress)
    nats = curve[-1]["nats"]
    return {
        "method": run.method,
        "seed": run.seed,
        "rate": run.rate,
        "steps": run.steps,
        "selecting_nats": bench.score(student.eval(), bench.selecting),
        "nats": nats,
        "perplexity": math.exp(nats),
    }


def best_rate(rows: list[Row], method: str) -> float:
    """The rate of the short run that did best on the selecting text."""
    own = [row for row in rows if row["method"] == method]
    return float(min(own, key=lambda row: row["selecting_nats"])["rate"])


def packed_rows(bench: Bench, run: Run, **progress: Any) -> list[Row]:
    """Compress, distil and pack a model; the packed folder stays at `folder / method`.

    Returns:
        rows method, rate, step, nats, perplexity, then one with step -1: the packed model as loaded from disk, in
        float32, and its sizes.
    """
    student, report, curve = distilled(bench, run, bench.plan.probes, **progress)
    common = {"method": run.method, "rate": run.rate}
    rows = [common | row | {"perplexity": math.exp(row["nats"])} for row in curve]
    folder = bench.folder / run.method
    config = LittleBitConfig(bpp=bench.plan.bpp, init=run.method, seed=run.seed)
    sizes = save_compressed(student, folder, config, dtype=torch.bfloat16)
    nats = nats_per_token(load_compressed(folder, dtype=torch.float32), bench.heldout, 8)
    weights = sum(row["outputs"] * row["inputs"] for row in report)
    error = sum(row["error"] * row["outputs"] * row["inputs"] for row in report) / weights
    rows.append(common | {"step": -1, "nats": nats, "perplexity": math.exp(nats), "error": error, **sizes})
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
        nats = nats_per_token(model, heldout, 8)
        rows.append(
            {"method": method, "step": -1, "nats": nats, "perplexity": math.exp(nats), "file_bytes": size}
            | {"stored_bpp": bits / weights, "whole_model_bits": 8 * size / parameters}
        )
    return rows

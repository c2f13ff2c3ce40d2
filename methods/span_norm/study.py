"""The paper's study on one small scale: many short trainings on bytes of real text, and the laws at the start.

A run is deterministic under its settings: the same rows in the same order for every scheme of a seed, so that schemes
are compared in pairs. A run whose loss leaves the finite numbers stays in the results, with the step.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from methods.common.schedules import warm_flat_decay
from methods.span_norm.diagnose import diagnose
from methods.span_norm.moe import load_variation
from methods.span_norm.parameter_groups import parameter_groups

HEADS, WIDTH, FFN = 4, 64, 172
CURVE_EVERY = 10
FEW = 64  # rows for what needs no precision


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        scheme: norm placement. init: residual rule.
        rate: peak learning rate. seed: of weights and order.
        layers, width, ffn: shape; 4 heads. experts: 0 is dense, else top 2.
        steps, warmup: optimiser steps; the last 40 % decay linearly.
        batch, context: rows a step, bytes a row.
        drop: also measure the loss without each block at the end.
    """

    scheme: str
    init: str
    rate: float
    seed: int
    layers: int = 24
    width: int = WIDTH
    ffn: int = FFN
    experts: int = 0
    steps: int = 160
    warmup: int = 20
    batch: int = 8
    context: int = 64
    drop: bool = False

    @property
    def candidate(self) -> str:
        """The scheme with its start, as tables name it."""
        return f"{self.scheme}/{self.init}"


def make_model(run: Run, vocabulary: int) -> Any:
    """The run's model at its start."""
    from methods.span_norm import SpanNormConfig, SpanNormForCausalLM

    torch.manual_seed(run.seed)
    return SpanNormForCausalLM(
        SpanNormConfig(
            norm_scheme=run.scheme,
            residual_init=run.init,
            vocab_size=vocabulary,
            hidden_size=run.width,
            intermediate_size=run.ffn,
            num_hidden_layers=run.layers,
            num_attention_heads=HEADS,
            max_position_embeddings=run.context,
            num_experts=run.experts,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def train_run(run: Run, train: np.ndarray, validation: np.ndarray, vocabulary: int) -> dict[str, Any]:
    """Train one model.

    Args:
        run: the settings.
        train, validation: rows of `context + 1` tokens.
        vocabulary: number of tokens.

    Returns:
        the run's settings, parameters, held-out loss (nats a token) at the start and the end, the largest gradient
        norm before clipping, `diverged` (the step at which the loss was no number, or None), the training curve
        (step, loss, gradient norm), for experts the variation of their load, and with `drop` the rise of the held-out
        loss without each block.
    """
    model = make_model(run, vocabulary)
    held = torch.from_numpy(validation.astype(np.int64))
    start = held_out_loss(model, held[:FEW])
    curve, largest, diverged = _optimise(model, run, train)
    found: dict[str, Any] = {
        **asdict(run),
        "candidate": run.candidate,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "start": start,
        "loss": held_out_loss(model, held) if diverged is None else math.nan,
        "largest_grad_norm": largest,
        "diverged": diverged,
        "curve": curve,
    }
    if run.experts and diverged is None:
        model.eval()
        with torch.no_grad():
            logits = model(held[:FEW, :-1], output_router_logits=True, use_cache=False).router_logits
        found["load_variation"] = load_variation(logits, model.config.num_experts_per_tok)
    if run.drop and diverged is None:
        found["drop"] = drop_curve(model, held[:FEW])
    return found


def _optimise(
    model: nn.Module, run: Run, train: np.ndarray
) -> tuple[list[dict[str, float]], float, int | None]:
    """Train in place; (curve, largest gradient norm before clipping, step at which the loss was no number)."""
    draw = np.random.default_rng((run.seed, 1))
    order = np.concatenate(
        [draw.permutation(len(train)) for _ in range(math.ceil(run.steps * run.batch / len(train)))]
    )
    optimiser = torch.optim.AdamW(parameter_groups(model, run.rate), betas=(0.9, 0.95), fused=True)
    factor = warm_flat_decay(run.steps, run.warmup, round(0.4 * run.steps))
    peaks = [group["lr"] for group in optimiser.param_groups]
    curve: list[dict[str, float]] = []
    largest = 0.0
    model.train()
    for step in range(run.steps):
        for group, peak in zip(optimiser.param_groups, peaks, strict=True):
            group["lr"] = peak * factor(step)
        rows = order[step * run.batch : (step + 1) * run.batch]
        loss, objective = _losses(model, torch.from_numpy(train[rows].astype(np.int64)))
        optimiser.zero_grad(set_to_none=True)
        objective.backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        value = float(loss.detach())
        if not math.isfinite(value):
            return curve, largest, step + 1
        largest = max(largest, norm) if math.isfinite(norm) else math.inf
        if step % CURVE_EVERY == 0 or step == run.steps - 1:
            curve.append({"step": step + 1, "loss": value, "grad_norm": norm})
        optimiser.step()
    return curve, largest, None


def _losses(model: nn.Module, batch: Tensor) -> tuple[Tensor, Tensor]:
    """(cross-entropy in nats a token, what is minimised: with the experts' losses)."""
    inputs, wanted = batch[:, :-1], batch[:, 1:]
    if not model.config.num_experts:  # type: ignore[union-attr]
        logits = model(inputs, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), wanted.flatten())
        return loss, loss
    out = model(batch, labels=batch, use_cache=False)
    plain = cross_entropy(out.logits[:, :-1].flatten(0, 1), wanted.flatten())
    return plain, out.loss


@torch.no_grad()
def held_out_loss(model: nn.Module, rows: Tensor, batch: int = 64) -> float:
    """Mean nats a token over all rows; the model's mode is kept."""
    training = model.training
    model.eval()
    total = 0.0
    for part in rows.split(batch):
        logits = model(part[:, :-1], use_cache=False).logits
        total += float(cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
    model.train(training)
    return total / (rows.shape[0] * (rows.shape[1] - 1))


class _Skip(nn.Module):
    """A block that does nothing."""

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        return hidden_states


def drop_curve(model: Any, rows: Tensor) -> list[float]:
    """How much the held-out loss rises without each block, in nats a token."""
    whole = held_out_loss(model, rows)
    rises = []
    for place, block in enumerate(model.model.layers):
        model.model.layers[place] = _Skip()
        rises.append(held_out_loss(model, rows) - whole)
        model.model.layers[place] = block
    return rises


def start_laws(scheme: str, init: str, layers: int, seed: int, tokens: int = 32) -> dict[str, Any]:
    """Sizes, gradients and similarity at the start, on two rows of random tokens (no claim about language).

    Returns:
        hidden_rms and token_cosine at the end, the smallest and largest hidden_rms, log_gradient_ratio:
        ln(|dL/dX_1| / |dL/dX_L|), and the profiles over depth.
    """
    model = make_model(Run(scheme, init, 0.0, seed, layers=layers, context=tokens), 256)
    ids = torch.randint(0, 256, (2, tokens), generator=torch.Generator().manual_seed(seed))
    found = diagnose(model, ids)
    gradients = found["grad_norm"]
    return {
        "scheme": scheme,
        "init": init,
        "candidate": f"{scheme}/{init}",
        "layers": layers,
        "seed": seed,
        "hidden_rms": found["hidden_rms"][-1],
        "smallest_rms": min(found["hidden_rms"]),
        "largest_rms": max(found["hidden_rms"]),
        "token_cosine": found["token_cosine"][-1],
        "log_gradient_ratio": math.log(gradients[1] / gradients[-1]),
        "grad_norm": gradients,
        "rms_profile": found["hidden_rms"],
    }

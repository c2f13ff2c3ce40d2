"""The bench of `littlebit2` on a whole model as a step, resumable part by part and within a distillation."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from methods.common.errors import DataError
from tasks.compress.prune import text_documents
from tasks.progress import progress_bar
from tasks.quiet import quiet_progress
from tasks.reference import Reference
from tasks.step import step
from tasks.study.littlebit2 import ROWS, Parts, write_frames
from tasks.study.littlebit2_config import ModelStudy

logger = logging.getLogger("seedloom")


def measure_model(out: Path, *, settings: ModelStudy, model: Reference, text: Reference) -> dict[str, Any]:
    """The model compressed and distilled from each initialisation, and its peers; `out/<method>` are packed folders."""
    from transformers import AutoTokenizer

    from methods.littlebit2.study_model import Run, best_rate, packed_rows, peer_rows, short_row

    parts = Parts(out / ROWS)
    bench = _bench(out, settings, model, text)
    size = settings.batch * settings.length
    steps, short = max(1, settings.tokens // size), max(1, settings.short_tokens // size)

    def part(name: str, work: Callable[..., list[dict[str, Any]]], *given: Any) -> list[dict[str, Any]]:
        rows = parts.get(name)
        if rows is None:
            with (
                quiet_progress(),
                progress_bar(f"{name} layers", "layer") as on_layer,
                progress_bar(name, "step") as on_step,
            ):
                rows = work(*given, on_layer=on_layer, on_step=on_step)
            parts.keep(name, rows)
            logger.info("study: %s, perplexity %.1f", name, rows[-1]["perplexity"])
        return rows

    def brief(run: Run) -> list[dict[str, Any]]:
        return part(f"short-{run.name}", lambda run, **bars: [short_row(bench, run, **bars)], run)

    if parts.get("peers") is None:
        parts.keep("peers", peer_rows(bench.load, bench.heldout))
    trials: list[dict[str, Any]] = []
    for method in settings.methods:
        seeds = (0, *(seed for seed in settings.repeats if seed))
        rate = settings.rates[0]
        if len(settings.rates) > 1 or len(seeds) > 1:
            tried = [row for rate in settings.rates for row in brief(Run(method, rate, short))]
            rate = best_rate(tried, method)
            tried += [row for seed in seeds[1:] for row in brief(Run(method, rate, short, seed))]
            trials += [row | {"chosen": row["rate"] == rate} for row in tried]
        part(method, lambda run, **bars: packed_rows(bench, run, **bars), Run(method, rate, steps))
        shutil.rmtree(bench.parts(method), ignore_errors=True)
        AutoTokenizer.from_pretrained(str(model.path), local_files_only=True).save_pretrained(out / method)
    facts = {"text_tokens": bench.tokens.numel(), "scored_tokens": bench.heldout.numel(), "steps": steps}
    facts |= {"read_tokens": steps * size, "read_tokens_of_short_runs": short * size}
    frames = {"model": parts.frame(["peers", *settings.methods])}
    if trials:
        frames["rates"] = pd.DataFrame(trials)
    return write_frames(out, frames) | {"facts": facts}


def _bench(out: Path, settings: ModelStudy, model: Reference, text: Reference) -> Any:
    import torch
    from transformers import AutoTokenizer

    from methods.common.dtype import resolve_dtype
    from methods.littlebit2.distillation import token_blocks
    from methods.littlebit2.study_model import Bench, ModelPlan
    from tasks.load_model import load_causal_lm

    tokenizer = AutoTokenizer.from_pretrained(str(model.path), local_files_only=True)
    tokens = token_blocks(tokenizer, text_documents(text.path / "calibration"), settings.length)
    held = token_blocks(tokenizer, text_documents(text.path), settings.length, 2 * settings.scored_tokens)
    if len(held) < 2:
        raise DataError(
            f"text: the held-out part has {held.numel()} tokens; give at least {2 * settings.length}"
        )
    half = min(len(held) // 2, max(1, settings.scored_tokens // settings.length))
    plan = ModelPlan(settings.bpp, settings.batch, settings.hidden_weight, resolve_dtype(settings.dtype))
    return Bench(
        lambda: load_causal_lm(model.path, torch.float32), tokens, held[:half], held[half:], plan, out
    )


@step("study-littlebit2-model", kind="report", version="2", timeout_seconds=7 * 24 * 3600)
def model_study(out: Path, **inputs: Any) -> dict[str, Any]:
    """The model itself compressed and distilled, and its peers."""
    return measure_model(out, **inputs)

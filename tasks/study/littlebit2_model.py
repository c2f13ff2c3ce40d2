"""The bench of `littlebit2` on a whole model as a step, resumable part by part and within a distillation."""

import logging
import shutil
from pathlib import Path
from typing import Any

from tasks.reference import Reference
from tasks.step import step
from tasks.study.littlebit2 import ROWS, Parts, write_frames
from tasks.study.littlebit2_config import ModelStudy

logger = logging.getLogger("seedloom")


def measure_model(out: Path, *, settings: ModelStudy, model: Reference, text: Reference) -> dict[str, Any]:
    """The model compressed and distilled from each initialisation, and its peers; `out/<method>` are packed folders."""
    import torch
    from transformers import AutoTokenizer

    from methods.littlebit2.distillation import token_blocks
    from methods.littlebit2.study_model import ModelPlan, distilled_rows, peer_rows
    from tasks.compress.prune import progress_bar, text_documents
    from tasks.load_model import load_causal_lm

    parts = Parts(out / ROWS)
    tokenizer = AutoTokenizer.from_pretrained(str(model.path), local_files_only=True)
    tokens = token_blocks(tokenizer, text_documents(text.path / "calibration"), settings.length)
    heldout = token_blocks(tokenizer, text_documents(text.path), settings.length, settings.scored_tokens)

    def load() -> Any:
        return load_causal_lm(model.path, torch.float32)

    plan = ModelPlan(
        bpp=settings.bpp,
        steps=max(1, settings.tokens // (settings.batch * settings.length)),
        batch=settings.batch,
        rate=settings.rate,
        hidden_weight=settings.hidden_weight,
    )
    if parts.get("peers") is None:
        parts.keep("peers", peer_rows(load, heldout))
    for method in settings.methods:
        if parts.get(method) is None:
            with (
                progress_bar(f"{method} layers", "layer") as on_layer,
                progress_bar(method, "step") as on_step,
            ):
                rows = distilled_rows(
                    load, tokens, heldout, plan, method, out, on_layer=on_layer, on_step=on_step
                )
            parts.keep(method, rows)
            shutil.rmtree(out / f"{method}.parts")
            tokenizer.save_pretrained(out / method)
            logger.info("study: %s distilled, perplexity %.1f", method, rows[-1]["perplexity"])
    facts = {"text_tokens": tokens.numel(), "scored_tokens": heldout.numel(), "steps": plan.steps}
    facts["read_tokens"] = plan.steps * plan.batch * settings.length
    return write_frames(out, {"model": parts.frame(["peers", *settings.methods])}) | {"facts": facts}


@step("study-littlebit2-model", kind="report", version="1", timeout_seconds=7 * 24 * 3600)
def model_study(out: Path, **inputs: Any) -> dict[str, Any]:
    """The model itself compressed and distilled, and its peers."""
    return measure_model(out, **inputs)

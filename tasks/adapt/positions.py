"""A model's answers by the evidence's depth, its losses and view gaps: the same prompts and rows for every model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from methods.common.dtype import compute_device, resolve_dtype
from methods.common.errors import DataError
from methods.rope_psd import check_rope, evaluate_positions, position_report, set_rope, view_gap
from methods.rope_psd.ruler import Material, split_sentences
from tasks.adapt.config import PositionSettings
from tasks.load_model import load_causal_lm
from tasks.one_model import one_model_at_a_time
from tasks.prepare.models import check_model_folder
from tasks.pretrain.corpus import load_record, load_rows
from tasks.reference import Reference
from tasks.train.expert_folder import write_json
from tasks.train.loading import load_tokenizer

ANSWERS = "answers.json"
GAPS = (0.25, 1.0, 4.0)  # of the target length


def check_adaptable(folder: Path) -> None:
    """Refuse a model without plain rotary positions, before any work starts.

    Raises:
        DataError: the folder holds no model that can be adapted, naming why.
    """
    from transformers import AutoConfig

    check_model_folder(folder, "causal-lm")
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    found = getattr(config, "rope_parameters", None)
    if not found:
        raise DataError(
            f"model {folder}: a {config.model_type} has no rotary positions; give a RoPE model such as Llama or Qwen"
        )
    kind = found.get("rope_type", "default")
    if kind in ("dynamic", "longrope") or any(isinstance(value, dict) for value in found.values()):
        raise DataError(
            f"model {folder}: its rotary frequencies are {kind!r} or differ by layer; give one with fixed frequencies"
        )
    if found.get("mrope_section"):
        raise DataError(
            f"model {folder}: has several position indices a token (M-RoPE); give a model with one, such as Llama"
        )


def measure_positions(
    out: Path, *, settings: PositionSettings, model: Reference, corpus: Reference
) -> dict[str, Any]:
    """Write `out/answers.json`: right or wrong by depth and length, losses and view gaps.

    Returns:
        the report of each length (mean, worst, spread over depths), the losses, and the gap curve.

    Raises:
        DataError: the model or the corpus is damaged, or no prompt fits the length.
    """
    import pandas as pd

    folder = corpus.expect("data")
    record = load_record(folder)
    context = int(record["context"])
    tokenizer = load_tokenizer(model.expect("model"))
    device = compute_device()
    held_out = load_rows(folder, "validation").with_format("numpy")
    places = np.linspace(0, len(held_out) - 1, min(settings.rows, len(held_out))).round().astype(int)
    rows = torch.from_numpy(
        np.stack([held_out[int(place)]["input_ids"] for place in places]).astype(np.int64)
    )
    text = tokenizer.decode(np.concatenate([row["input_ids"] for row in held_out]), skip_special_tokens=True)
    material = Material(split_sentences(text))
    depths = [i / (settings.depths - 1) for i in range(settings.depths)]
    with one_model_at_a_time:
        loaded = load_causal_lm(
            model.path, dtype=resolve_dtype("auto", device) if device.type != "cpu" else torch.float32
        )
        check_rope(loaded)
        loaded.to(device)
        gaps = view_gap(loaded, rows, [max(1, round(gap * context)) for gap in GAPS], batch=1)
        frames = []
        lengths = [context // 2] * settings.shorter + [context]
        if settings.beyond > 1:
            lengths.append(round(settings.beyond * context))
        for length in lengths:
            if length > context:
                set_rope(loaded, yarn_factor=length / context, window=context)
            frames.append(
                evaluate_positions(
                    loaded,
                    tokenizer,
                    settings.task,
                    length,
                    depths,
                    settings.prompts,
                    settings.seed,
                    material=material,
                    chat=settings.chat,
                )
            )
    frame = pd.concat(frames, ignore_index=True)
    write_json(
        out / ANSWERS, {"answers": frame.round(6).to_dict("records"), "gaps": gaps, "context": context}
    )
    return {"report": position_report(frame).to_dict("records"), "gaps": gaps}

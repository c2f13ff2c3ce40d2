"""LittleBit-2 as a compressor: layers as products of two sign matrices, distilled on calibration text, packed."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from methods.common.errors import DataError
from tasks.compress.prune import text_documents
from tasks.compress.recipes import HISTORY, LittleBitRecipe
from tasks.progress import progress_bar

if TYPE_CHECKING:
    from methods.littlebit2 import LittleBitConfig

# What a killed attempt goes on from: finished layers and the training's checkpoint.
PARTS = ".parts"
CHECKPOINT_EVERY = 50  # steps


def check_layers(config: dict[str, Any], recipe: LittleBitRecipe) -> None:
    """Refuse by config.json, before any weight is read: a packed model, and with `strict` a target out of reach.

    Raises:
        DataError, ConfigError: one line with the remedy.
    """
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise DataError(f"the model is compressed already ({method}); give the original model")
    if recipe.strict:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        from methods.littlebit2.factorize import choose_rank
        from methods.littlebit2.model import target_layers

        known = AutoConfig.for_model(**config)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(known, trust_remote_code=False)
        model.tie_weights()
        settings = factorisation(recipe, 0)
        for target in target_layers(model, settings):
            outputs, inputs = target.weight.shape
            choose_rank(outputs, inputs, settings, target.name)


def factorisation(recipe: LittleBitRecipe, seed: int) -> LittleBitConfig:
    """The recipe's part that `methods.littlebit2` knows as its settings."""
    from methods.littlebit2 import LittleBitConfig

    return LittleBitConfig(
        bpp=recipe.bpp,
        residual=recipe.residual,
        init=recipe.init,
        n_iter=recipe.iterations,
        kv_factor=recipe.kv_factor,
        strict=recipe.strict,
        seed=seed,
    )


def littlebit2_model(
    out: Path, *, recipe: LittleBitRecipe, model: Path, calibration: Path | None, seed: int
) -> dict[str, Any]:
    """Factorise all linear layers, distil, pack; see `tasks.compress.recipes.Compressor`.

    Goes on from what a killed attempt left in `out`: finished layers, and the last checkpoint of the distillation.
    """
    from methods.littlebit2 import compress_model
    from tasks.load_model import load_causal_lm

    parts = out / PARTS
    parts.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    config = factorisation(recipe, seed)
    student = load_causal_lm(model)
    stored = student.dtype
    with progress_bar(f"{recipe.label} layers", "layer") as on_layer:
        student, rows = compress_model(
            student.float(), config, gradient=recipe.gradient, on_layer=on_layer, cache=parts / "layers"
        )
    factorised = time.perf_counter()
    facts: dict[str, Any] = {}
    if recipe.distill_tokens:
        assert calibration is not None
        facts = _distilled(out, student, recipe, model, calibration, seed)
    distilled = time.perf_counter()
    facts |= _describe(rows, _saved(out, student, recipe, config, stored))
    shutil.rmtree(parts)
    timings = {
        "factorise_seconds": factorised - started,
        "distill_seconds": distilled - factorised,
        "save_seconds": time.perf_counter() - distilled,
    }
    return facts | {"format": "littlebit2" if recipe.storage == "packed" else "dense", "timings": timings}


def _distilled(
    out: Path, student: Any, recipe: LittleBitRecipe, model: Path, calibration: Path, seed: int
) -> dict[str, Any]:
    """Train the student in place, its curve into `out`; what was done."""
    import torch
    from transformers import AutoTokenizer

    from methods.common.dtype import resolve_dtype
    from methods.littlebit2 import distill, token_blocks
    from tasks.load_model import load_causal_lm

    tokenizer = AutoTokenizer.from_pretrained(str(model), trust_remote_code=False, local_files_only=True)
    tokens = token_blocks(tokenizer, text_documents(calibration), recipe.distill_length)
    size = recipe.distill_batch * recipe.distill_length
    steps = max(1, recipe.distill_tokens // size)
    with progress_bar(f"{recipe.label} distillation", "step") as on_step:
        history = distill(
            student,
            load_causal_lm(model, torch.float32).requires_grad_(False),
            tokens,
            steps=steps,
            batch_size=recipe.distill_batch,
            lr=recipe.distill_rate,
            hidden_weight=recipe.hidden_weight,
            reduction="token",
            seed=seed,
            dtype=resolve_dtype(recipe.distill_dtype),
            checkpoint=out / PARTS / "checkpoint",
            checkpoint_every=CHECKPOINT_EVERY,
            on_step=lambda done, total, _: on_step(done, total),
        )
    lines = [json.dumps(row) for row in history if "loss" in row]
    (out / HISTORY).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {
        "distill_steps": steps,
        "distill_tokens_used": steps * size,
        "distill_text_tokens": tokens.numel(),
        "distill_loss_first": history[1]["loss"],
        "distill_loss_last": history[-1]["loss"],
    }


def _saved(
    out: Path, student: Any, recipe: LittleBitRecipe, config: LittleBitConfig, stored: Any
) -> dict[str, float]:
    """Write the model, packed or dense; the sizes of the packed one. Weights of an attempt killed while it wrote go."""
    from methods.littlebit2 import densify, save_compressed
    from tasks.quiet import quiet_progress

    def remove_weights() -> None:
        for file in out.glob("model*.safetensors*"):
            file.unlink()

    remove_weights()
    with quiet_progress():
        sizes = save_compressed(student, out, config, dtype=stored)
        if recipe.storage == "dense":
            remove_weights()
            densify(student.to(stored)).save_pretrained(str(out))
    return sizes


def _describe(rows: list[dict[str, Any]], sizes: dict[str, float]) -> dict[str, Any]:
    """The three sizes apart: nominal (the paper's formula), stored (bytes of the layers), the whole model's."""
    layers = [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
    weights = sum(row["outputs"] * row["inputs"] for row in rows)
    bits = sum(row["nominal_bpp"] * row["outputs"] * row["inputs"] for row in rows)
    errors = sorted(row["error"] for row in rows)
    return {
        "layers": layers,
        "layers_compressed": len(rows),
        "layers_above_target": sum(row["clamped"] for row in rows),
        "error/mean": sum(errors) / len(errors),
        "error/median": errors[len(errors) // 2],
        "error/max": errors[-1],
        "size/nominal_bytes": sizes["unpacked_bytes"] + bits / 8,
        "size/nominal_bits_per_weight": bits / weights,
        "size/stored_bits_per_weight": sizes["stored_bpp"],
        "size/whole_model_bits": sizes["whole_model_bits"],
        "size/embedding_share": sizes["embedding_share"],
    }
